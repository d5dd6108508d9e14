package ocispec

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// onBase computes the spec of a plain container on a base.
func onBase(t *testing.T, base string, change func(*Input)) *specs.Spec {
	t.Helper()
	parsed, err := ParseBase([]byte(base))
	if err != nil {
		t.Fatal(err)
	}
	in := plainInput()
	if caps := BaseCapabilities(parsed); caps != nil {
		in.Defaults.Capabilities = caps
	}
	if change != nil {
		change(&in)
	}
	spec, err := Container(in)
	if err != nil {
		t.Fatal(err)
	}
	OnBase(spec, parsed)
	return spec
}

// TestBaseDoesNotDecideWhatRequestsDo: a base like that of `ctr oci spec`, with nothing of its own, changes the limits
// of processes and the capabilities alone.
func TestBaseDoesNotDecideWhatRequestsDo(t *testing.T) {
	want, err := Container(plainInput())
	if err != nil {
		t.Fatal(err)
	}
	want.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1024, Soft: 1024}}
	got := onBase(t, `{"ociVersion":"1.0.0","process":{"terminal":true,"user":{"uid":5,"gid":5},"args":["sh"],"env":["PATH=/base"],"cwd":"/x",
		"noNewPrivileges":true,"apparmorProfile":"a","selinuxLabel":"l","oomScoreAdj":7,"rlimits":[{"type":"RLIMIT_NOFILE","hard":1024,"soft":1024}]},
		"root":{"path":"rootfs","readonly":true},"hostname":"base","domainname":"d",
		"mounts":[{"destination":"/proc","type":"proc","source":"proc"},{"destination":"/run","type":"tmpfs","source":"tmpfs"},{"destination":"/dev/shm","type":"tmpfs","source":"shm"}],
		"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]},"cgroupsPath":"/default","namespaces":[{"type":"user"},{"type":"network"},{"type":"pid"}],
		"uidMappings":[{"containerID":0,"hostID":1,"size":1}],"maskedPaths":["/proc/base"],"readonlyPaths":["/proc/base"],"rootfsPropagation":"shared",
		"seccomp":{"defaultAction":"SCMP_ACT_KILL"},"mountLabel":"m"}}`, nil)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBaseAdds(t *testing.T) {
	spec := onBase(t, `{"annotations":{"example.com/base":"1","io.kubernetes.cri.container-type":"other"},
		"hooks":{"createRuntime":[{"path":"/base"}]},
		"process":{"env":["BASE=1","PATH=/base"],"capabilities":{"bounding":["CAP_CHOWN","CAP_KILL"],"permitted":["CAP_SYS_ADMIN"]},"ioPriority":{"class":"IOPRIO_CLASS_BE","priority":6}},
		"mounts":[{"destination":"/base","type":"tmpfs","source":"tmpfs"},{"destination":"/tmp","type":"bind","source":"/srv","options":["rbind","ro"]}],
		"linux":{"sysctl":{"kernel.shm_rmid_forced":"1"},"intelRdt":{"closID":"gold"},"namespaces":[{"type":"time"}],"timeOffsets":{"boottime":{"secs":5}},
		"devices":[{"path":"/dev/base","type":"c","major":1,"minor":3},{"path":"/dev/fuse","type":"c","major":9,"minor":9}],
		"resources":{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":1,"minor":3,"access":"rw"}],"pids":{"limit":77},"memory":{"swappiness":3},"unified":{"memory.high":"5"}}}}`,
		func(in *Input) {
			in.Devices = []Device{{Path: "/dev/fuse", Source: "/dev/fuse", Type: "c", Major: 10, Minor: 229, Mode: 0o666, Access: "rw"}}
		})
	if spec.Annotations["example.com/base"] != "1" || spec.Annotations["io.kubernetes.cri.container-type"] != "container" {
		t.Errorf("annotations %v", spec.Annotations)
	}
	if len(spec.Hooks.CreateRuntime) != 1 || spec.Process.IOPriority.Priority != 6 || spec.Linux.IntelRdt.ClosID != "gold" || spec.Linux.TimeOffsets["boottime"].Secs != 5 {
		t.Errorf("hooks %+v, IO priority %+v, RDT %+v, offsets %v", spec.Hooks, spec.Process.IOPriority, spec.Linux.IntelRdt, spec.Linux.TimeOffsets)
	}
	if env := spec.Process.Env; !slices.Contains(env, "BASE=1") || slices.Contains(env, "PATH=/base") || !slices.Contains(env, "PATH=/bin") {
		t.Errorf("environment %q", env)
	}
	if caps := spec.Process.Capabilities; !slices.Equal(caps.Bounding, []string{"CAP_CHOWN", "CAP_KILL"}) || !slices.Equal(caps.Permitted, caps.Bounding) {
		t.Errorf("capabilities %+v", caps)
	}
	if spec.Mounts[0].Destination != "/base" || spec.Mounts[1].Source != "/srv" {
		t.Errorf("mounts %+v", spec.Mounts[:2])
	}
	if !slices.ContainsFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.TimeNamespace }) {
		t.Errorf("namespaces %+v", spec.Linux.Namespaces)
	}
	paths := map[string]int64{}
	for _, d := range spec.Linux.Devices {
		paths[d.Path] = d.Major
	}
	if paths["/dev/base"] != 1 || paths["/dev/fuse"] != 10 {
		t.Errorf("devices %v", paths)
	}
	res := spec.Linux.Resources
	if res.Devices[0].Allow || !res.Devices[1].Allow || *res.Devices[1].Major != 1 || *res.Devices[2].Major != 10 || len(res.Devices) != 3 {
		t.Errorf("device rules %+v", res.Devices)
	}
	if *res.Pids.Limit != 77 || *res.Memory.Swappiness != 3 || res.Unified["memory.high"] != "5" || spec.Linux.Sysctl["kernel.shm_rmid_forced"] != "1" {
		t.Errorf("resources %+v, sysctls %v", res, spec.Linux.Sysctl)
	}
}

func TestBadBase(t *testing.T) {
	for text, want := range map[string]string{
		"{":                                "not an OCI spec",
		`{"process":{"env":["x"]}}`:        `process.env[0]: "x": want NAME=VALUE`,
		`{"mounts":[{"destination":"x"}]}`: "mounts[0].destination",
		`{"mounts":[{"destination":"/x","type":"bind","source":"x"}]}`: "mounts[0].source",
		`{"linux":{"resources":{"pids":{"limit":"x"}}}}`:               "not an OCI spec",
	} {
		if _, err := ParseBase([]byte(text)); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestWritableCgroups: only a handler that allows it gives an unprivileged container its cgroups to write.
func TestWritableCgroups(t *testing.T) {
	access := func(in Input) string {
		spec, err := Container(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range spec.Mounts {
			if m.Type == "cgroup" {
				if slices.Contains(m.Options, "rw") {
					return "rw"
				}
				return "ro"
			}
		}
		return "none"
	}
	in := plainInput()
	if got := access(in); got != "ro" {
		t.Errorf("without the rule: %s", got)
	}
	in.CgroupWritable = true
	if got := access(in); got != "rw" {
		t.Errorf("with the rule: %s", got)
	}
}

// FuzzBase: a base that is accepted can be added to a container's spec, and the spec can be written.
func FuzzBase(f *testing.F) {
	f.Add([]byte(`{"process":{"env":["A=b"],"capabilities":{}},"linux":{"resources":{"devices":[{"allow":true,"type":"a"}]},"namespaces":[{"type":"time"}]}}`))
	f.Add([]byte(`{"annotations":null,"hooks":{"prestart":[{"path":"/x"}]},"mounts":[{"destination":"/a"}],"linux":{"sysctl":{"a":"b"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		base, err := ParseBase(data)
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("%v blames nobody", err)
			}
			return
		}
		in := plainInput()
		spec, err := Container(in)
		if err != nil {
			t.Fatal(err)
		}
		OnBase(spec, base)
		if _, err := json.Marshal(spec); err != nil {
			t.Error(err)
		}
		if spec.Root.Path != "/rootfs" || spec.Linux.CgroupsPath != in.CgroupsPath || spec.Process.Args[0] != "/server" {
			t.Errorf("%s decides %+v, %s, %q", data, spec.Root, spec.Linux.CgroupsPath, spec.Process.Args)
		}
	})
}
