package pod_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/engine"
	"github.com/berthrun/berth/internal/errs"
)

// TestAttachHonoursStdin: what a client types reaches a container only if its config has stdin, with a terminal or not. Else
// the input is read, and the client gets the output.
func TestAttachHonoursStdin(t *testing.T) {
	b := newBed(t, nil)
	sandbox := b.mustRun(b.SandboxConfig("web"))
	for name, is := range map[string]struct{ tty, stdin bool }{
		"plain": {}, "terminal": {tty: true}, "input": {stdin: true}, "both": {true, true},
	} {
		config := b.ContainerConfig(name, b.Programs.Sleep)
		config.Tty, config.Stdin = is.tty, is.stdin
		id, err := b.s.CreateContainer(t.Context(), sandbox, config)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.s.StartContainer(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		const word = "echo me"
		in, typed := io.Pipe()
		taken := make(chan error, 1)
		go func() {
			_, err := io.WriteString(typed, word)
			taken <- err
			typed.Close()
		}()
		var out strings.Builder
		err = b.s.Attach(t.Context(), &engine.AttachSpec{ContainerID: id, Stdin: in, Stdout: &out})
		if heard := out.String() == word; err != nil || heard != is.stdin {
			t.Errorf("%s: %q, %v", name, out.String(), err)
		}
		select {
		case err := <-taken:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the input was not read", name)
		}
		if is.stdin {
			continue
		}
		assertKind(t, b.s.Attach(t.Context(), &engine.AttachSpec{ContainerID: id, Stdin: in}), errs.State, "stdin false")
	}
	b.clear()
}
