//go:build integration

package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/fieldtest"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// attempt is a request that must be refused, with the code and with words that the message must
// have.
type attempt struct {
	name  string
	do    func() error
	code  codes.Code
	words []string
}

// trial is a berth for bad requests, with one good pod on it.
type trial struct {
	*harness.Berth
	pod    harness.Pod
	ground harness.Ground
}

func newTrial(t *testing.T, opts harness.Options) *trial {
	t.Helper()
	b := harness.Start(t, opts)
	x := &trial{Berth: b}
	// The first pod creates what berth creates once and keeps.
	b.RemovePod(b.RunPod("warm", "exit 0").Sandbox)
	cannot := b.Sandbox("warm")
	sandbox, missing := b.RunSandbox(cannot), b.Container("warm", "")
	missing.Command = []string{"/no/such"}
	if _, err := b.Runtime.StartContainer(b.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: b.Create(sandbox, missing, cannot)}); err == nil {
		t.Error("a program that is not there was started")
	}
	b.RemovePod(sandbox)
	x.pod = b.RunPod("good", "sleep 100000")
	b.Exec(x.pod.Container, "true") // the supervisor keeps what all execs share
	x.ground = b.StillGround()
	return x
}

// codeOf is the code for a bad request, or that of the refusal if the engine under test refuses any such
// request.
func (x *trial) codeOf(requested string, code codes.Code) codes.Code {
	x.T.Helper()
	if x.Refuses(requested) != nil {
		return codes.Unimplemented
	}
	return code
}

// wordOf is the word in the message, as codeOf is the code.
func (x *trial) wordOf(requested, word string) string {
	x.T.Helper()
	if reason := x.Refuses(requested); reason != nil {
		return reason.Error()
	}
	return word
}

// try makes each attempt and checks that it leaves nothing.
func (x *trial) try(t *testing.T, attempts []attempt) {
	t.Helper()
	for _, a := range attempts {
		t.Run(a.name, func(t *testing.T) {
			err := a.do()
			checkRefusal(t, err, a.code, a.words)
			checkField(t, err)
			x.nothingLeft(t)
		})
	}
}

// nothingLeft compares what the berth holds with what it held before.
func (x *trial) nothingLeft(t *testing.T) {
	t.Helper()
	if left := x.AwaitGround(x.ground, 10*time.Second); left != "" {
		t.Errorf("left behind:\n%s", left)
		x.ground = x.StillGround() // the next attempt must not fail for this one
	}
}

// checkField checks that the error of an invalid request names its field. A start has no field for
// an error of the program, and an import is not a call of CRI.
func checkField(t *testing.T, err error) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != codes.InvalidArgument || strings.HasPrefix(s.Message(), "cannot start container") || strings.HasPrefix(s.Message(), "cannot import") {
		return
	}
	if fieldtest.Named(s.Message()) == "" {
		t.Errorf("the message names no field of a request: %s", s.Message())
	}
}

func checkRefusal(t *testing.T, err error, code codes.Code, words []string) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != code {
		t.Errorf("code %s, want %s: %s", s.Code(), code, s.Message())
		return
	}
	for _, word := range words {
		if !strings.Contains(s.Message(), word) {
			t.Errorf("the message does not say %q: %s", word, s.Message())
		}
	}
	if strings.Count(s.Message(), "cannot create container") > 1 {
		t.Errorf("the message says more than once what cannot be done: %s", s.Message())
	}
	const longest = 4096
	if len(s.Message()) > longest {
		t.Errorf("the message has %d bytes: %.200s ...", len(s.Message()), s.Message())
	}
}

// badSandbox changes a good sandbox's configuration and runs it.
func (x *trial) badSandbox(name string, code codes.Code, change func(*runtimeapi.PodSandboxConfig), words ...string) attempt {
	return attempt{name, func() error {
		config := x.Sandbox("bad")
		change(config)
		_, err := x.Runtime.RunPodSandbox(x.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: config})
		return err
	}, code, words}
}

// badContainer changes a good container's configuration, and creates it in the good pod. It starts
// the container if it can be created, and then removes it.
func (x *trial) badContainer(name string, code codes.Code, change func(*runtimeapi.ContainerConfig), words ...string) attempt {
	return attempt{name, func() error {
		config := x.Container("bad", "exit 0")
		change(config)
		made, err := x.Runtime.CreateContainer(x.Ctx(), &runtimeapi.CreateContainerRequest{
			PodSandboxId: x.pod.Sandbox, Config: config, SandboxConfig: x.pod.Config,
		})
		if err != nil {
			return err
		}
		_, err = x.Runtime.StartContainer(x.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: made.ContainerId})
		if _, removeErr := x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: made.ContainerId}); removeErr != nil {
			return removeErr
		}
		return err
	}, code, words}
}
