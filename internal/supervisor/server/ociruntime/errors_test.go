package ociruntime

import (
	"errors"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// An error that the request causes is Invalid, whatever else its text contains.
func TestKindOf(t *testing.T) {
	const start = "unable to start container process: error during container init: "
	for text, want := range map[string]error{
		start + `error mounting "/x" to rootfs at "/proc/self": "/r/proc/1" cannot be mounted because it is inside /proc`:        errs.Invalid,
		start + "error reopening /dev/null inside container: open /dev/null: is a directory":                                     errs.Invalid,
		start + "error creating seccomp syscall condition for syscall getpid: syscalls only have up to 6 arguments":              errs.Invalid,
		`unable to apply cgroup configuration: failed to write "900": write /sys/fs/cgroup/x/cpuset.mems: invalid argument`:      errs.Invalid,
		`failed to write "0,0": write /sys/fs/cgroup/x/cpuset.cpus: argument list too long`:                                      errs.Invalid,
		`failed to write 77: write /sys/fs/cgroup/x/cgroup.procs: invalid argument`:                                              nil,
		"write to `cpuset.mems`: Invalid argument":                                                                               errs.Invalid,
		"write to `/proc/self/oom_score_adj`: Invalid argument":                                                                  nil,
		"cannot set the memory limit lower than its current usage":                                                               errs.Invalid,
		start + "error creating device nodes: mknodat /r/dev/x: no space left on device":                                         errs.Exhausted,
		start + "current working directory is outside of container mount namespace root -- possible container breakout detected": errs.Invalid,
		start + `error mounting "proc" to rootfs at "/proc": filesystem "proc" must be mounted on ordinary directory`:            errs.Invalid,
		start + `error mounting "/x" to rootfs at "/y": securejoin.OpenInRoot /y: openat2 /y: too many levels of symbolic links`: errs.Invalid,
		start + "something else": nil,
	} {
		err := classify(errors.New(text), "/r")
		if got := errs.Kind(err); !errors.Is(got, want) {
			t.Errorf("%s: kind %v, want %v", text, got, want)
		}
		if want != nil && err.Error() != text+": "+want.Error() {
			t.Errorf("%s became %v", text, err)
		}
	}
}

func TestCauseOf(t *testing.T) {
	const start = "unable to start container process: error during container init: "
	for _, c := range []struct {
		text  string
		cause errs.Cause
		path  string
	}{
		{start + `error mounting "/etc" to rootfs at "/etc/pass\"wd": not a directory`, errs.CauseMount, `/etc/pass"wd`},
		{start + `error mounting "a \" to rootfs at \"/b" to rootfs at "/c": not a directory`, errs.CauseMount, "/c"},
		{start + `error reopening /dev/null inside container: open /dev/null: is a directory`, errs.CauseDevNull, "/dev/null"},
		{start + `error creating device nodes: mkdir parent of device inode "/etc/group/x": not a directory`, errs.CauseDevice, "/etc/group/x"},
		{start + `error creating device nodes: create device inode /dev/x: too many levels of symbolic links`, errs.CauseDevice, "/dev/x"},
		{start + `error creating device nodes: mknodat /r/dev/x y: file name too long`, errs.CauseDevice, "/dev/x y"},
		{start + `error creating device nodes: mknodat /other/dev/x: file name too long`, errs.CauseDevice, "/other/dev/x"},
		{start + `error creating device nodes: not a directory`, errs.CauseDevice, ""},
		{start + `error creating seccomp syscall condition for syscall getpid: syscalls only have up to 6 arguments`, errs.CauseSeccomp, ""},
		{`string X is not a valid action for seccomp`, errs.CauseSeccomp, ""},
		{`unable to apply cgroup configuration: failed to write "900": write /sys/fs/cgroup/cpuset/x/cpuset.mems: invalid argument`, errs.CauseLimit, "cpuset.mems"},
		{`failed to write "-5": write /sys/fs/cgroup/x/hugetlb.2MB.max: numerical result out of range`, errs.CauseLimit, "hugetlb.2MB.max"},
		{`container init was OOM-killed (memory limit too low?)`, errs.CauseLimit, "memory.max"},
		{`unable to set memory limit to 5 (current usage: 9, peak usage: 9)`, errs.CauseLimit, "memory.max"},
		{`rejecting memory limit 5 <= usage 9`, errs.CauseLimit, "memory.max"},
		{`failed to write 77: write /sys/fs/cgroup/x/cgroup.procs: invalid argument`, "", ""},
		{"write to `memory.limit_in_bytes`: Device or resource busy", errs.CauseLimit, "memory.limit_in_bytes"},
		{"write to `cpuset.mems`: Invalid argument", errs.CauseLimit, "cpuset.mems"},
		{"cannot set the memory limit lower than its current usage", errs.CauseLimit, "memory.max"},
		{start + "something else", "", ""},
	} {
		err := withCause(errors.New(c.text), "/r")
		var fault *errs.Fault
		if errors.As(err, &fault) != (c.cause != "") || fault != nil && (fault.Cause != c.cause || fault.Path != c.path) {
			t.Errorf("%s: %#v, want %s %q", c.text, err, c.cause, c.path)
		}
		if err.Error() != c.text {
			t.Errorf("%s became %v", c.text, err)
		}
	}
	if err := classify(nil, ""); err != nil {
		t.Error(err)
	}
}

// TestHookFault: an error of a hook blames no part of the container, whatever the hook has printed.
func TestHookFault(t *testing.T) {
	const start = "unable to start container process: error during container init: "
	spec := &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/first"}, {Path: "/second"}}}
	for text, want := range map[string]string{
		start + `error running createContainer hook #1: exit status 1, stdout: , stderr: init: exec: "x": not a directory`:    "/second: ",
		start + "error running createContainer hook #2: exit status 1, stdout: seccomp, stderr: ":                             "",
		"error running prestart hook #0: exit status 1, stdout: , stderr: not a directory":                                    "",
		"error running prestart hook #0: exit status 1, stderr: error running createContainer hook #1: ":                      "",
		`handler "runc": /usr/sbin/runc create: x: error running hook #0: error running hook: exit status 1, stderr: seccomp`: "",
		"handler \"crun\": /usr/bin/crun create: error executing hook `/x` (exit code: 1)":                                    "",
	} {
		for name, err := range map[string]error{"with the hooks": classify(withHook(startFault(errors.New(text)), spec), ""), "without": Classify(errors.New(text), "")} {
			var fault *errs.Fault
			if !errors.Is(err, errs.Unavailable) || errors.Is(err, errs.Invalid) || errors.As(err, &fault) {
				t.Errorf("%s, %s: %#v", text, name, err)
			}
			if name == "with the hooks" && err.Error() != want+text+": unavailable" {
				t.Errorf("%s became %v", text, err)
			}
		}
	}
	const program = start + `exec: "error running createContainer hook #0: ": executable file not found in $PATH`
	if err := Classify(errors.New(program), ""); !errors.Is(err, errs.Invalid) {
		t.Errorf("a program with a strange name: %v", err)
	}
}

func TestStartFault(t *testing.T) {
	const start = "unable to start container process: error during container init: "
	for text, program := range map[string]bool{
		start + `exec: "nope": executable file not found in $PATH`:                                                               true,
		start + `exec: "/etc/passwd": permission denied`:                                                                         true,
		start + "current working directory is outside of container mount namespace root -- possible container breakout detected": true,
		start + "mkdir /etc/passwd: not a directory":                                                                             true,
		start + `chdir to cwd ("/secret") set in config.json failed: denied`:                                                     true,
		// gVisor's.
		`starting sub-container [nope]: error finding executable "nope" in PATH [/bin]: no such file or directory`: true,
		`executing command "/nope" in sandbox: failed to load /nope: no such file or directory`:                    true,
		"starting sub-container [/nope]: creating process: failed to load /nope: no such file or directory":        true,
		start + `error mounting "/x" to rootfs at "/y": mkdir /y: read-only`:                                       false,
		"unable to set memory limit to 4096 (current usage: 9, peak usage: 9)":                                     false,
	} {
		err := startFault(errors.New(text))
		var fault *ProgramError
		if errors.As(err, &fault) != program || err.Error() != text || errors.Is(err, errs.Invalid) != program {
			t.Errorf("%s: %#v", text, err)
		}
	}
	if err := startFault(nil); err != nil {
		t.Error(err)
	}
}
