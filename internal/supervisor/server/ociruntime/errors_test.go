package ociruntime

import (
	"errors"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// What the request is to blame for is Invalid, whatever else the text has.
func TestKindOf(t *testing.T) {
	const start = "unable to start container process: error during container init: "
	for text, want := range map[string]error{
		start + `error mounting "/x" to rootfs at "/proc/self": "/r/proc/1" cannot be mounted because it is inside /proc`:        errs.Invalid,
		start + "error reopening /dev/null inside container: open /dev/null: is a directory":                                     errs.Invalid,
		start + "error creating seccomp syscall condition for syscall getpid: syscalls only have up to 6 arguments":              errs.Invalid,
		`unable to apply cgroup configuration: failed to write "900": write /sys/fs/cgroup/x/cpuset.mems: invalid argument`:      errs.Invalid,
		`failed to write "0,0": write /sys/fs/cgroup/x/cpuset.cpus: argument list too long`:                                      errs.Invalid,
		`failed to write 77: write /sys/fs/cgroup/x/cgroup.procs: invalid argument`:                                              nil,
		start + "error creating device nodes: mknodat /r/dev/x: no space left on device":                                         errs.Exhausted,
		start + "current working directory is outside of container mount namespace root -- possible container breakout detected": errs.Invalid,
		start + `error mounting "proc" to rootfs at "/proc": filesystem "proc" must be mounted on ordinary directory`:            errs.Invalid,
		start + `error mounting "/x" to rootfs at "/y": securejoin.OpenInRoot /y: openat2 /y: too many levels of symbolic links`: errs.Invalid,
		start + "something else": nil,
	} {
		if got := errs.Kind(kindOf(errors.New(text))); !errors.Is(got, want) {
			t.Errorf("%s: kind %v, want %v", text, got, want)
		}
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
		start + `error mounting "/x" to rootfs at "/y": mkdir /y: read-only`:                                                     false,
		"unable to set memory limit to 4096 (current usage: 9, peak usage: 9)":                                                   false,
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
