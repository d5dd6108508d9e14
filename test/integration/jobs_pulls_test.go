//go:build integration

package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/test/harness"
)

// halfway is a registry that sends the first half of a layer, and the rest when let is closed.
type halfway struct {
	imagetest.Registry
	img *imagetest.Image
	let chan struct{}
}

func startHalfway(t *testing.T) *halfway {
	t.Helper()
	img, err := imagetest.Build(imagetest.Spec{Layers: []imagetest.Layer{{{Path: "file", Content: []byte(strings.Repeat("content", 60_000))}}}})
	if err != nil {
		t.Fatal(err)
	}
	h := &halfway{img: img, let: make(chan struct{})}
	layer := img.Layers[0]
	h.Intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, layer.Digest.String()) || req.Method != http.MethodGet {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(layer.Size))
		_, _ = w.Write(layer.Data[:layer.Size/2])
		w.(http.Flusher).Flush()
		select {
		case <-h.let:
			_, _ = w.Write(layer.Data[layer.Size/2:])
		case <-req.Context().Done():
		}
		return true
	}
	for _, repository := range []string{"first", "second"} {
		h.Push(repository, "1", img)
	}
	return h
}

// TestJobsOfPulls: `berth jobs` shows the bytes of a pull as they arrive, how many requests share it, and that a pull of
// the same layer by another name waits for the first.
func TestJobsOfPulls(t *testing.T) {
	b := harness.Start(t, harness.Options{NoImages: true})
	h := startHalfway(t)
	host := b.Serve(&h.Registry)
	var pulls sync.WaitGroup
	pull := func(name string) {
		pulls.Go(func() {
			if _, err := b.Images.PullImage(b.Ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: host + "/" + name}}); err != nil {
				t.Errorf("pull of %s: %v", name, err)
			}
		})
	}
	var jobs map[string]berthapi.Job
	list := func() {
		var list berthapi.JobList
		if err := json.Unmarshal([]byte(b.MustCLI("jobs", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		jobs = map[string]berthapi.Job{}
		for _, j := range list.Jobs {
			jobs[strings.TrimPrefix(j.Key, host+"/")] = j
		}
	}
	size := h.img.Layers[0].Size
	defer func() {
		if t.Failed() {
			t.Logf("jobs: %+v", jobs)
		}
	}()
	pull("first:1")
	pull("first:1")
	b.Await("half of the layer shows, for both requests", func() bool {
		list()
		first := jobs["first:1"]
		return first.FetchedBytes == size/2 && first.LayerBytes == size && first.Stage == "fetching" && first.Waiters == 2 &&
			strings.HasSuffix(first.WaitsFor, fmt.Sprintf(", %d of %d bytes", size/2, size))
	})
	pull("second:1")
	b.Await("the second name waits for the first", func() bool {
		list()
		return jobs["second:1"].Stage == "waiting" && strings.HasPrefix(jobs["second:1"].WaitsFor, "1 layer that another pull fetches")
	})
	close(h.let)
	pulls.Wait()
}

// TestInterruptedPull: Ctrl-C of `berth image pull` says what becomes of the pull, which another request waits for.
func TestInterruptedPull(t *testing.T) {
	b := harness.Start(t, harness.Options{NoImages: true})
	h := startHalfway(t)
	ref := b.Serve(&h.Registry) + "/first:1"
	pulled := make(chan error, 1)
	go func() {
		_, err := b.Images.PullImage(b.Ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
		pulled <- err
	}()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(b.Ctx(), filepath.Join(b.Bin, "berth"), "image", "pull", "--endpoint", "unix://"+b.Socket, ref)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waiters := func() int {
		var list berthapi.JobList
		if err := json.Unmarshal([]byte(b.MustCLI("jobs", "-o", "json")), &list); err != nil || len(list.Jobs) == 0 {
			return 0
		}
		return list.Jobs[0].Waiters
	}
	b.Await("both wait for the pull", func() bool { return waiters() == 2 })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	said := stderr.String()
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(said, "the pull of "+ref+" was canceled: interrupt signal received; it goes on while other requests wait for it") {
		t.Errorf("exit code %d, it says %q", code, said)
	}
	if b.Docker == nil && !strings.Contains(said, "for up to a day") {
		t.Errorf("it does not say what berth keeps: %q", said)
	}
	b.Await("one request waits for the pull", func() bool { return waiters() == 1 })
	close(h.let)
	if err := <-pulled; err != nil {
		t.Errorf("the other request: %v", err)
	}
}

// TestDaemonKilledInAPull: the command says that the connection ended, and what to do.
func TestDaemonKilledInAPull(t *testing.T) {
	b := harness.Start(t, harness.Options{NoImages: true})
	h := startHalfway(t)
	ref := b.Serve(&h.Registry) + "/first:1"
	var stderr bytes.Buffer
	cmd := exec.CommandContext(b.Ctx(), filepath.Join(b.Bin, "berth"), "image", "pull", "--endpoint", "unix://"+b.Socket, ref)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b.Await("the pull fetches", func() bool { return strings.Contains(b.MustCLI("jobs"), "fetching") })
	b.KillDaemon()
	_ = cmd.Wait()
	want := "the connection to unix://" + b.Socket + " ended during PullImage: the daemon stopped or was restarted"
	if code := cmd.ProcessState.ExitCode(); code != 75 || !strings.Contains(stderr.String(), want) {
		t.Errorf("exit code %d, it says %q", code, stderr.String())
	}
	b.StartDaemon()
}
