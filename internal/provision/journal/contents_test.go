package journal

import (
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

// TestKeepWritesAContentOnce: tasks that run at the same time may keep the same content: a machine has one temporary
// file for a path.
func TestKeepWritesAContentOnce(t *testing.T) {
	const content = "two programs that are equal"
	synctest.Test(t, func(t *testing.T) {
		files := &writes{Files: provisiontest.New().Files(), proceed: make(chan struct{})}
		if err := files.Mkdir("/j", provision.Attr{Mode: 0o700}); err != nil {
			t.Fatal(err)
		}
		j, err := Open(files, "/j", time.Now)
		if err != nil {
			t.Fatal(err)
		}
		kept := make(chan error, 2)
		for range 2 {
			go func() {
				kept <- j.Keep(digest.FromString(content).String(), func() (io.ReadCloser, error) {
					return io.NopCloser(strings.NewReader(content)), nil
				})
			}()
		}
		synctest.Wait()
		close(files.proceed)
		for range 2 {
			if err := <-kept; err != nil {
				t.Error(err)
			}
		}
		if n := files.n.Load(); n != 1 {
			t.Errorf("the content was written %d times", n)
		}
	})
}

// writes counts writes, which wait until proceed is closed.
type writes struct {
	provision.Files
	n       atomic.Int32
	proceed chan struct{}
}

func (w *writes) Write(p string, r io.Reader, attr provision.Attr) error {
	w.n.Add(1)
	<-w.proceed
	return w.Files.Write(p, r, attr)
}
