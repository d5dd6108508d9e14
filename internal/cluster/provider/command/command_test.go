package command

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

func TestRun(t *testing.T) {
	var traced string
	sh := Tool{Name: "sh", Trace: func(_ string, args []string) { traced = args[1] }}
	out, err := Output(t.Context(), sh, "-c", "echo a; echo b >&2")
	if err != nil || string(out) != "a\n" || !strings.HasPrefix(traced, "echo a") {
		t.Errorf("%q, %v, traced %q", out, err, traced)
	}
	var stream bytes.Buffer
	err = sh.Run(t.Context(), Call{Args: []string{"-c", "cat; for i in 1 2 3 4 5 6 7 8 9 10 11; do echo line $i >&2; done; exit 7"}, Stdin: strings.NewReader("in"), Stdout: &stream})
	failed := (*Error)(nil)
	if !errors.As(err, &failed) || failed.Code != 7 || stream.String() != "in" || len(failed.Lines) != quoted || failed.Lines[9] != "line 11" {
		t.Errorf("%#v, %q", err, stream.String())
	}
	for _, raw := range []bool{false, true} {
		err := sh.Run(t.Context(), Call{Args: []string{"-c", "echo secret; exit 7"}, Raw: raw})
		if err == nil || strings.Contains(err.Error(), "secret") == raw {
			t.Errorf("raw %t: %v", raw, err)
		}
	}
	if !Says(err, "absent", "line 11") || Says(err, "line 1\n") || Says(errors.New("line 11"), "line 11") {
		t.Error("Says")
	}
	_, err = Output(t.Context(), Tool{Name: "berth-no-such-program"})
	if !errors.Is(err, errs.Unsupported) {
		t.Errorf("%v", err)
	}
	if Found("berth-no-such-program") || !Found("sh") {
		t.Error("Found")
	}
}

// TestCancel: the tool gets SIGTERM, so that it can clean up. The error has the cause.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	started := &signal{want: "ready", seen: func() { cancel(errs.Deadline) }}
	begun := time.Now()
	err := Tool{Name: "sh"}.Run(ctx, Call{Args: []string{"-c", "trap 'echo tidied >&2; exit 1' TERM; echo ready; while :; do sleep 0.01; done"}, Stdout: started})
	if !errors.Is(err, errs.Deadline) || !Says(err, "tidied") || time.Since(begun) > grace {
		t.Errorf("%v after %s", err, time.Since(begun))
	}
}

type signal struct {
	want string
	seen func()
}

func (s *signal) Write(p []byte) (int, error) {
	if strings.Contains(string(p), s.want) {
		s.seen()
	}
	return len(p), nil
}

// TestKind: recorded messages of engines, and the kinds of their errors.
func TestKind(t *testing.T) {
	for line, want := range map[string]error{
		`Error: creating container storage: the container name "a" is already in use by 36e395bfa58d. You have to remove that container to be able to reuse that name: that name is already in use`: errs.Exists,
		"Error: IPAM error: requested ip address 10.89.0.130 is already allocated to container ID 36e395bfa58d":                                                                                     errs.Exists,
		"Error: cannot listen on the TCP port: listen tcp4 127.0.0.1:36443: bind: address already in use":                                                                                           errs.Exists,
		"Error: volume with name a-var already exists: volume already exists":                                                                                                                       errs.Exists,
		"Error: network nope: unable to find network with name or ID nope: network not found":                                                                                                       errs.NotFound,
		"docker: Error response from daemon: Conflict. The container name \"/aa\" is already in use by container \"2dfad3897ba5\".\nSee 'docker run --help'.":                                       errs.Exists,
		"docker: Error response from daemon: Address already in use.":                                                                                                                               errs.Exists,
		"docker: Error response from daemon: driver failed programming external connectivity on endpoint cc (36e76e4d8dab): Bind for 127.0.0.1:36443 failed: port is already allocated.":            errs.Exists,
		"Error: No such network: nope":                                                                               errs.NotFound,
		"Error: No such volume: nope":                                                                                errs.NotFound,
		"Error: No such image: localhost/nope:latest":                                                                errs.NotFound,
		"Error response from daemon: network nope not found":                                                         errs.NotFound,
		`Error: inspecting object: no such object: "nope"`:                                                           errs.NotFound,
		"Error: inspecting object: no such volume nope":                                                              errs.NotFound,
		"Error: inspecting object: localhost/nope:latest: image not known":                                           errs.NotFound,
		"Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?":          errs.Unavailable,
		"Error: write /a: no space left on device":                                                                   errs.Exhausted,
		`Error: runc: exec failed: unable to start container process: exec: "x": executable file not found in $PATH`: nil,
	} {
		err := Failed("podman", Call{Args: []string{"run", "--name", "a"}}, []string{line}, errors.New("exit status 125"))
		if !errors.Is(errs.Kind(err), want) {
			t.Errorf("%s: %v, want %v", line, errs.Kind(err), want)
		}
		guest := Failed("podman", Call{Args: []string{"exec", "a"}, Guest: true}, []string{line}, errors.New("exit status 1"))
		if errs.Kind(guest) != nil {
			t.Errorf("%s of a program in a container is %v", line, errs.Kind(guest))
		}
	}
}

// TestErrorText: the error has the verb and the tool's message. It does not have the arguments,
// which may contain passwords.
func TestErrorText(t *testing.T) {
	call := Call{Args: []string{"network", "create", "-e", "HTTP_PROXY=http://me:secret@proxy"}}
	for want, lines := range map[string][]string{
		"podman network create: exit status 1":            nil,
		"podman network create: exit status 1: a":         {"a"},
		"podman network create: exit status 1:\n  a\n  b": {"a", "b"},
	} {
		if got := Failed("podman", call, lines, errors.New("exit status 1")).Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
