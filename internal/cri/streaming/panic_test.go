package streaming

import (
	"context"
	"io"
	"strings"
	"testing"

	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine"
)

// A panic in one session is an error of that session. Its client gets the error, and the server
// serves the next one.
func TestPanicEndsOneSession(t *testing.T) {
	clients(t, func(t *testing.T, dial func(string) remotecommand.Executor) {
		first := true
		s := serve(t, &fake{exec: func(context.Context, *engine.ExecSpec) (int32, error) {
			if first {
				first = false
				panic("oh no")
			}
			return 0, nil
		}})
		var out strings.Builder
		err := dial(execURL(t, s, &runtimeapi.ExecRequest{Stdout: true})).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out})
		if err == nil || !strings.Contains(err.Error(), "exec in container c1") {
			t.Errorf("the client heard %v", err)
		}
		err = dial(execURL(t, s, &runtimeapi.ExecRequest{Stdout: true})).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out})
		if err != nil {
			t.Errorf("the next session: %v", err)
		}
	})
}

func TestPanicEndsOneForwardedConnection(t *testing.T) {
	s := serve(t, &fake{portForward: func(_ context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
		if port == 9 {
			panic("oh no")
		}
		// Read to the end first. An earlier answer would close the connection of the client.
		_, err := io.Copy(io.Discard, stream)
		if err == nil {
			_, err = io.WriteString(stream, "served")
		}
		return err
	}})
	raw, err := s.PortForwardURL(&runtimeapi.PortForwardRequest{PodSandboxId: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	local := forward(t, dialTunnel, raw, []string{"0:9"})
	if answer, err := say(local[0], "one"); answer != "" {
		t.Errorf("a forwarding that failed answered %q, %v", answer, err)
	}
	if raw, err = s.PortForwardURL(&runtimeapi.PortForwardRequest{PodSandboxId: "p1"}); err != nil {
		t.Fatal(err)
	}
	local = forward(t, dialTunnel, raw, []string{"0:80"})
	if answer, err := say(local[0], "two"); err != nil || answer != "served" {
		t.Errorf("the next connection: %q, %v", answer, err)
	}
}
