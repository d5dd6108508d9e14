package journal

import (
	"errors"
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

// TestShortenKeepsGivenVersions: a journal whose old entries go still knows which version of a package is berth's, and which is
// an update of the distribution.
func TestShortenKeepsGivenVersions(t *testing.T) {
	files := provisiontest.New().Files()
	j, err := Open(files, "/j", time.Now)
	if err != nil {
		t.Fatal(err)
	}
	prior := func(name, version string) Prior {
		return Prior{provision.Object{Kind: provision.KindPackage, Name: name}, provision.State{Exists: true, Attrs: map[string]string{"version": version}}}
	}
	entry := func(touched, after []Prior) {
		t.Helper()
		if _, err := j.Begin(Begin{Verb: Apply}, nil); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(j.Touch("packages", nil, touched), j.Done("packages", after), j.End(OK, nil)); err != nil {
			t.Fatal(err)
		}
	}
	entry([]Prior{prior("given", "1"), prior("update", "1")}, []Prior{prior("given", "2"), prior("update", "1")})
	entry([]Prior{prior("update", "2")}, []Prior{prior("update", "2")})
	for range keep {
		entry(nil, nil)
	}
	if err := j.shorten(); err != nil {
		t.Fatal(err)
	}
	if j, err = Open(files, "/j", time.Now); err != nil {
		t.Fatal(err)
	}
	if n := j.History()[0].Number; n != 3 {
		t.Fatalf("the oldest entry is %d", n)
	}
	for name, want := range map[string]bool{"given": true, "update": false} {
		if p := prior(name, "2"); j.Changed(p.Object, p.State) != want {
			t.Errorf("%s: given %t, want %t", name, !want, want)
		}
	}
}
