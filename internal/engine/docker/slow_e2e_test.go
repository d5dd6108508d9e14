//go:build integration && e2e

package docker_test

import (
	"io"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/engine"
)

// slow is a client that is quick for some bytes, and then takes a second for 256 kB.
type slow struct{ quick, got int }

func (s *slow) Write(p []byte) (int, error) {
	if s.got > s.quick {
		time.Sleep(time.Duration(len(p)) * time.Second / (256 << 10))
	}
	s.got += len(p)
	return len(p), nil
}

// much is how many bytes a program writes for a slow client, in lines.
const much = 9 << 20

const writeMuch = "dd if=/dev/zero bs=65536 count=144 2>/dev/null"

// TestSlowClients get all of an output, although the engine drops what nobody reads two seconds
// after the end of a program.
func TestSlowClients(t *testing.T) {
	d := dockertest.Start(t, dockertest.Options{})
	p := newPod(t, newEngine(t, d), dockertest.LoadImage(t, d))
	c := p.run("sleeps", "exec sleep 100000", nil)

	t.Run("slow client of a command", func(t *testing.T) {
		out := &slow{quick: much - 1<<20}
		if code := p.exec(engine.ExecSpec{ContainerID: c, Stdout: out, Stderr: io.Discard}, writeMuch); code != 0 || out.got != much {
			t.Errorf("code %d, %d bytes of %d", code, out.got, much)
		}
	})
	t.Run("slow client of a container", func(t *testing.T) {
		one := p.run("writes", "read x; "+writeMuch, func(config *runtimeapi.ContainerConfig) { config.Stdin = true })
		out := &slow{quick: much - 1<<20}
		err := p.e.Attach(within(t), &engine.AttachSpec{ContainerID: one, Stdin: strings.NewReader("go\n"), Stdout: out})
		if err != nil || out.got != much {
			t.Errorf("%d bytes of %d, %v", out.got, much, err)
		}
	})
}
