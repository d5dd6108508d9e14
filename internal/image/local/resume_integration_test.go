//go:build integration

package local

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
)

const (
	largeLayer = 4 << 20
	firstPart  = 3 << 20
)

// large is an image with a layer that is worth a request for the rest.
func large(t *testing.T, name string) *imagetest.Image {
	t.Helper()
	content := strings.Repeat(name+" is in a large layer. ", largeLayer/len(name+" is in a large layer. ")+1)
	return build(t, imagetest.Spec{Layers: []imagetest.Layer{{{Path: "large", Content: []byte(content)}}}})
}

// stopAt sends the first part of a layer, and then nothing until the client is gone. It closes reached.
func stopAt(layer imagetest.Blob, reached chan<- struct{}) func(http.ResponseWriter, *http.Request) bool {
	var once sync.Once
	return func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, layer.Digest.String()) {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(layer.Data)))
		_, _ = w.Write(layer.Data[:firstPart])
		w.(http.Flusher).Flush()
		once.Do(func() { close(reached) })
		<-req.Context().Done()
		return true
	}
}

// awaitPull returns when done does. It fails the test if a pull ends before; ended is nil for a pull of another process.
func awaitPull(t *testing.T, ended <-chan error, what string, done func() bool) {
	t.Helper()
	deadline := time.After(require.Patience(10 * time.Second))
	for !done() {
		select {
		case err := <-ended:
			t.Fatalf("the pull ends with %v before %s", err, what)
		case <-deadline:
			t.Fatalf("not yet: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// unfinished waits until the store has some bytes of an unfinished download, and returns its file. See awaitPull.
func unfinished(t *testing.T, cfg Config, ended <-chan error) (file string) {
	t.Helper()
	awaitPull(t, ended, "a part of a layer is on disk", func() bool {
		files, err := filepath.Glob(filepath.Join(cfg.Root, "content/ingest/*/data"))
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(files, func(file string) bool {
			fi, err := os.Stat(file)
			return err == nil && fi.Size() == firstPart
		})
		if i >= 0 {
			file = files[i]
		}
		return i >= 0
	})
	return file
}

func TestADownloadContinuesAfterAKill(t *testing.T) {
	for _, damage := range []bool{false, true} {
		t.Run(fmt.Sprint("damage ", damage), func(t *testing.T) {
			cfg := testConfig(t)
			img := large(t, "crash")
			layer := img.Layers[0]
			r, reached := &imagetest.Registry{}, make(chan struct{})
			r.Intercept = stopAt(layer, reached)
			host := serve(t, r)
			for i := range crashImages { // the worker pulls one of them
				r.Push(fmt.Sprint("crash", i), "1", img)
			}
			w := startWorker(t, cfg, host)
			<-reached
			part := unfinished(t, cfg, nil)
			w.kill()
			if damage {
				f, err := os.OpenFile(part, os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.WriteAt(make([]byte, 4096), 1<<20); err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
			r.Intercept = nil
			s := open(t, cfg)
			if usage, err := s.Usage(t.Context()); err != nil || usage.Images[0].Bytes < firstPart {
				t.Errorf("the unfinished download is not counted: %+v, %v", usage, err)
			}
			if _, err := s.Pull(t.Context(), host+"/crash0:1", image.Auth{}, nil); err != nil {
				t.Fatal(err)
			}
			want := layer.Size - firstPart
			if damage {
				want += layer.Size
			}
			if sent := r.Sent(layer.Digest); sent != want {
				t.Errorf("the registry sent %d bytes after the kill, want %d of %d", sent, want, layer.Size)
			}
			if err := s.Remove(t.Context(), host+"/crash0:1"); err != nil {
				t.Error(err)
			}
			s.Close()
			assertEmpty(t, s)
		})
	}
}

// TestADownloadInPartsContinues: a layer that is fetched over several connections leaves a beginning without gaps, and no
// byte is sent twice.
func TestADownloadInPartsContinues(t *testing.T) {
	img := large(t, "parts")
	layer := img.Layers[0]
	r := &imagetest.Registry{}
	var stops atomic.Bool
	stops.Store(true)
	r.Intercept = func(_ http.ResponseWriter, req *http.Request) bool {
		var from int
		_, err := fmt.Sscanf(req.Header.Get("Range"), "bytes=%d-", &from)
		if err != nil || from < firstPart || !stops.Load() {
			return false
		}
		<-req.Context().Done()
		return true
	}
	host := serve(t, r)
	r.Push("parts", "1", img)
	cfg := testConfig(t)
	cfg.LayerConnections, cfg.LayerPart = 4, firstPart/6
	s := open(t, cfg)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := s.Pull(ctx, host+"/parts:1", image.Auth{}, nil)
		left <- err
	}()
	unfinished(t, cfg, left)
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the pull that is cancelled: %v", err)
	}
	s.Close()
	stops.Store(false)
	s = open(t, cfg)
	if _, err := s.Pull(t.Context(), host+"/parts:1", image.Auth{}, nil); err != nil {
		t.Fatal(err)
	}
	if sent := r.Sent(layer.Digest); sent != layer.Size {
		t.Errorf("the registry sent %d bytes, want %d", sent, layer.Size)
	}
}

// TestCallersWithOtherCredentialsShareADownload: the one that leaves harms nobody, the one whose
// credentials are refused gets nothing, and no byte is sent twice.
func TestCallersWithOtherCredentialsShareADownload(t *testing.T) {
	img := large(t, "shared")
	layer := img.Layers[0]
	r, reached := &imagetest.Registry{User: "joe", Password: "pw"}, make(chan struct{})
	stop := stopAt(layer, reached)
	var stopped atomic.Bool
	r.Intercept = func(w http.ResponseWriter, req *http.Request) bool {
		user, password, _ := req.BasicAuth()
		return user == "joe" && password == "pw" && stopped.CompareAndSwap(false, strings.HasSuffix(req.URL.Path, layer.Digest.String())) && stop(w, req)
	}
	host := serve(t, r)
	r.Push("private", "1", img)
	s := open(t, testConfig(t))
	good := image.Auth{Username: "joe", Password: "pw"}
	first, leave := context.WithCancel(t.Context())
	var pulls sync.WaitGroup
	pulls.Go(func() {
		if _, err := s.Pull(first, host+"/private:1", good, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("the first caller: %v", err)
		}
	})
	<-reached
	unfinished(t, s.cfg, nil)
	if _, err := s.Pull(t.Context(), host+"/private:1", image.Auth{Username: "joe", Password: "wrong"}, nil); !errors.Is(err, errs.Denied) {
		t.Errorf("wrong credentials: %v", err)
	}
	fetching := make(chan struct{})
	begin := sync.OnceFunc(func() { close(fetching) })
	pulls.Go(func() {
		// The same credentials in another form are other credentials.
		other := image.Auth{Username: "joe", Password: "pw", ServerAddress: host}
		_, err := s.Pull(t.Context(), host+"/private:1", other, func(p image.Progress) {
			if p.Stage == "fetching" {
				begin()
			}
		})
		if err != nil {
			t.Errorf("the second caller: %v", err)
		}
	})
	<-fetching
	leave()
	pulls.Wait()
	if sent := r.Sent(layer.Digest); sent != layer.Size-firstPart {
		t.Errorf("the registry sent %d bytes to the second caller, want %d", sent, layer.Size-firstPart)
	}
	if err := s.Remove(t.Context(), host+"/private:1"); err != nil {
		t.Error(err)
	}
	s.Close()
	assertEmpty(t, s) // also of the first caller
}
