//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// TestClusterInterrupted: nothing is left of a cluster whose creation is interrupted, at any step.
func TestClusterInterrupted(t *testing.T) {
	h := newClusterHost(t, engine{"podman", podmanOnly})
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	for _, step := range []string{"Creating nodes", "Setting up the nodes", "Starting the control plane", "Joining workers"} {
		t.Run(step, func(t *testing.T) {
			status, said := h.createUntil(t, step, func(create *os.Process) {
				if err := create.Signal(syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
			})
			if status != 130 {
				t.Errorf("it ended with %d\n%s", status, said)
			}
			h.nothingWithEngine()
			h.noNetworkLeft()
		})
	}
}

// TestClusterEngineDies: the engine is killed while berth creates a cluster. create fails and names
// what is left. Once the engine is back, all of it can be deleted, and a cluster with the same name
// can be created.
func TestClusterEngineDies(t *testing.T) {
	t.Run("docker", func(t *testing.T) {
		d := newDocker(t)
		h := newClusterHost(t, engine{"docker", func(*testing.T) string { return d.namespace }})
		h.survivesEngineKill(t, d.kill, func() { d.start(t) })
	})
	t.Run("berth", func(t *testing.T) {
		b := harness.Start(t, harness.Options{NoImages: true})
		hostOf(t, b).survivesEngineKill(t, b.KillDaemon, b.StartDaemon)
	})
}

// survivesEngineKill kills the engine during create, and starts it again.
func (h *clusterHost) survivesEngineKill(t *testing.T, kill, back func()) {
	t.Log(h.cluster("build-image", "--kubernetes", h.bin, "--rootfs", "../../out/systemd/root"))
	status, said := h.createUntil(t, "Starting the control plane", func(*os.Process) { kill() })
	t.Log(said)
	if status != 1 || !strings.Contains(said, "berth cluster delete --name e2e") {
		t.Errorf("it ended with %d", status)
	}
	back()
	t.Log(h.cluster("delete", "e2e"))
	if h.nodes == "" {
		h.nothingWithEngine()
	}
	h.noNetworkLeft()
	t.Log(h.cluster("create", "--config", clusterFile(t, 1), "--wait", h.patience()))
	t.Log(h.cluster("delete", "e2e"))
	h.nothingLeft("e2e")
}

// createUntil creates a cluster of two nodes, calls a function at a step, and returns how create
// ended.
func (h *clusterHost) createUntil(t *testing.T, step string, do func(create *os.Process)) (status int, said string) {
	t.Helper()
	cmd := exec.Command("nsenter", "--net=/run/netns/"+h.namespace, h.berth, "cluster", "create", "--provider", h.engine, "--config", clusterFile(t, 1))
	cmd.Env = append(os.Environ(), "KUBECONFIG="+h.kubeconfig)
	out := &watched{awaited: "• " + step, seen: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-out.seen:
		do(cmd.Process)
	case err := <-ended:
		t.Fatalf("it never came to %q: %v\n%s", step, err, out.text.String())
	}
	select {
	case <-ended:
	case <-time.After(require.Patience(5 * time.Minute)):
		_ = cmd.Process.Signal(syscall.SIGQUIT) // it prints where it hangs
		<-ended
		t.Errorf("it does not end")
	}
	return cmd.ProcessState.ExitCode(), out.text.String()
}

// watched keeps what is written, and closes seen once the output has a text.
type watched struct {
	awaited string
	seen    chan struct{}
	text    bytes.Buffer
	found   bool
}

func (w *watched) Write(p []byte) (int, error) {
	w.text.Write(p)
	if !w.found && strings.Contains(w.text.String(), w.awaited) {
		w.found = true
		close(w.seen)
	}
	return len(p), nil
}
