// Package dockertest starts real Docker engines for tests.
//
// An engine has directories, a cgroup and a configuration of its own. It shares the mount
// namespace of the test, because berth works with the files and namespaces of its containers.
package dockertest

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/require"
)

// Options configure an engine.
type Options struct {
	// NetNS is the name of the network namespace that the engine runs in, "" for the test's.
	NetNS string
	// LiveRestore keeps containers running while the engine does not.
	LiveRestore bool
	// CgroupDriver is cgroupfs or systemd, "" for cgroupfs.
	CgroupDriver string
	// CDIDirs hold CDI specs, none for the engine's own. Engines before 25 know none.
	CDIDirs []string
	// NoSysResource is for an engine on a host that denies it CAP_SYS_RESOURCE: the engine does not have
	// it, and its runc is not replaced by one that leaves out what takes it.
	NoSysResource bool
	// Args are added to the command line.
	Args []string
}

// Daemon is one engine.
type Daemon struct {
	// Endpoint is the engine's address, such as unix:///tmp/dkr-1/sock. Root is its directory
	// of data, Log the file with its output, Program the dockerd that runs.
	Endpoint, Root, Log, Program string

	t    testing.TB
	dir  string
	args []string
	// cgroup is the cgroup of all containers, as a path from the root of a hierarchy.
	cgroup string
	// hostFiles are the files that engines make outside of their directories.
	hostFiles []string
	cmd       *exec.Cmd
	// answered is true once the engine has answered.
	answered bool
	// ended is closed when the process of cmd was reaped.
	ended chan struct{}
}

// Start starts an engine and waits until it answers. The program is the one that BERTH_DOCKERD
// names, whose directory also has containerd and runc, or else the dockerd in PATH. When the
// test ends, the engine, its containers and its files are removed.
func Start(t testing.TB, opts Options) *Daemon {
	t.Helper()
	require.Root(t)
	driver := cmp.Or(opts.CgroupDriver, "cgroupfs")
	if driver == "systemd" {
		require.Systemd(t)
	}
	program := findProgram(t)
	dir, err := os.MkdirTemp("", "dkr-") // sockets below it need short paths
	must(t, err)
	d := &Daemon{
		Endpoint: "unix://" + filepath.Join(dir, "sock"), Root: filepath.Join(dir, "root"),
		Log: filepath.Join(dir, "log"), Program: program,
		t: t, dir: dir, hostFiles: absentHostFiles(),
	}
	t.Cleanup(d.remove)
	must(t, os.Mkdir(filepath.Join(dir, tmpDir), 0o700))
	d.args = d.arguments(driver)
	if opts.NoSysResource {
		d.args = append([]string{require.Binary(t, "setpriv"), "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"}, d.args...)
	} else {
		d.args = append(d.args, runtimeArguments(t, dir)...)
	}
	if opts.LiveRestore {
		d.args = append(d.args, "--live-restore")
	}
	d.args = append(d.args, cdiArguments(program, opts.CDIDirs)...)
	d.args = append(d.args, opts.Args...)
	if opts.NetNS != "" {
		nsenter := require.Binary(t, "nsenter")
		d.args = append([]string{nsenter, "--net=/run/netns/" + opts.NetNS}, d.args...)
	}
	d.Launch()
	return d
}

// cdiArguments makes an engine read CDI specs in directories, if it can.
func cdiArguments(program string, dirs []string) []string {
	const flag = "--cdi-spec-dir"
	if len(dirs) == 0 {
		return nil
	}
	help, err := exec.Command(program, "--help").CombinedOutput() //nolint:noctx // it ends by itself
	if err != nil || !strings.Contains(string(help), flag) {
		return nil
	}
	var arguments []string
	for _, dir := range dirs {
		arguments = append(arguments, flag, dir)
	}
	return arguments
}

func findProgram(t testing.TB) string {
	t.Helper()
	named := os.Getenv("BERTH_DOCKERD")
	if named == "" {
		return require.Binary(t, "dockerd")
	}
	if _, err := os.Stat(named); err != nil {
		t.Fatalf("BERTH_DOCKERD: %v", err)
	}
	return named
}

// arguments is the command line that all engines have. It names a configuration file, so that
// the host's own is not read, and turns off what changes the network of the host.
func (d *Daemon) arguments(driver string) []string {
	config := filepath.Join(d.dir, "daemon.json")
	must(d.t, os.WriteFile(config, []byte("{}"), 0o600))
	parent := "/" + filepath.Base(d.dir)
	d.cgroup = parent
	if driver == "systemd" {
		// A dash would mean one slice in another.
		parent = "dkr_" + filepath.Base(d.dir)[len("dkr-"):] + ".slice"
		d.cgroup = "/" + parent
	}
	return []string{
		d.Program, "--config-file", config, "--host", d.Endpoint,
		"--data-root", d.Root, "--exec-root", filepath.Join(d.dir, "exec"), "--pidfile", filepath.Join(d.dir, "pid"),
		"--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false",
		"--exec-opt", "native.cgroupdriver=" + driver, "--cgroup-parent", parent,
	}
}

// absentHostFiles returns those of the files that engines make on the host that do not exist.
func absentHostFiles() []string {
	var absent []string
	for _, file := range []string{"/etc/docker/key.json", "/etc/docker"} {
		if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
			absent = append(absent, file)
		}
	}
	return absent
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
