package main

import (
	"fmt"
	"path/filepath"
)

const crioConfig = `[crio]
root = "%[1]s/root"
runroot = "%[1]s/run"
log_dir = "%[1]s/pods"
version_file = "%[1]s/version"
version_file_persist = ""
[crio.api]
listen = "%[1]s/crio.sock"
[crio.image]
pause_image = "%[2]s"
signature_policy = "%[1]s/policy.json"
[crio.network]
network_dir = "%[1]s/net.d"
plugin_dirs = ["%[3]s"]
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_runtime = "runc"
[crio.runtime.runtimes.runc]
runtime_path = "%[3]s/runc"
runtime_type = "oci"
`

// newCRIO is a CRI-O whose program is crio; conmon is beside it or in PATH.
func newCRIO(o options, r *registry) *peer {
	dir := filepath.Join(o.work, "crio")
	return &peer{
		name:     "crio",
		beside:   "berth",
		socket:   filepath.Join(dir, "crio.sock"),
		logFile:  filepath.Join(dir, "crio.log"),
		logs:     filepath.Join(dir, "logs"),
		volatile: []string{filepath.Join(dir, "run")},
		config:   fmt.Sprintf(crioConfig, dir, r.image("pause:1"), o.bin) + fmt.Sprintf(cniNetwork, "crio0", dir, "10.204.0.0/16"),
		files: map[string]string{
			"policy.json":     `{"default": [{"type": "insecureAcceptAnything"}]}`,
			"registries.conf": fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", r.address),
		},
		argv: []string{
			"env", "PATH=" + filepath.Dir(o.crio) + ":" + o.bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			o.crio, "--config", filepath.Join(dir, "config.toml"), "--config-dir", "", "--registries-conf", filepath.Join(dir, "registries.conf"),
		},
		pause: true,
		owns: func(exe string) bool {
			return exe == o.crio || filepath.Base(exe) == "conmon" || filepath.Base(exe) == "conmonrs"
		},
	}
}
