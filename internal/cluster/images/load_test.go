package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/noderuntime"
	"github.com/berthrun/berth/internal/errs"
)

// layersTold is the report of a node's berth about an image with the base.
func layersTold(id, tag string) string {
	base := digest.FromString(clustertest.BaseLayer)
	return fmt.Sprintf(`[{"id":%q,"tags":[%q],"layers":[{"diffID":%q,"digest":%q,"mediaType":"application/vnd.oci.image.layer.v1.tar","size":%d}]}]`, id, tag, base, base, len(clustertest.BaseLayer))
}

// received are the layers in the archive that a node received.
func received(f *clustertest.Fake, node string) string {
	var all []string
	sent := f.Files[node+":image"]
	for name, layer := range map[string]string{"base": clustertest.BaseLayer, "own": clustertest.OwnLayer} {
		if strings.Contains(sent, layer) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

const twoWorkers = "pools: [{name: worker, count: 2}]\n"

// loader returns a loader, and creates the containers of a cluster.
func loader(t *testing.T, f *clustertest.Fake, text string) (Loader, *[]string) {
	t.Helper()
	f.MakeContainers(clustertest.Describe(t, text))
	reporter, steps := f.Reporter()
	return Loader{Provider: f, Reporter: reporter}, steps
}

func TestLoadSendsWhatIsMissing(t *testing.T) {
	f := clustertest.New(t)
	c, _ := loader(t, f, twoWorkers)
	f.Saved, f.IDs = clustertest.SavedImage(t), map[string]string{"app:1": strings.TrimPrefix(clustertest.ImageID(), "sha256:")}
	f.Has = map[string]string{
		"dev-control-plane": layersTold(clustertest.ImageID(), "docker.io/library/app:1"),
		"dev-worker":        layersTold("sha256:other", "docker.io/library/other:1"),
	}
	f.Ran = nil
	if err := c.Load(t.Context(), "dev", Options{Images: []string{"app:1"}}); err != nil {
		t.Fatal(err)
	}
	for node, want := range map[string]string{"dev-control-plane": "", "dev-worker": "own", "dev-worker2": "base own"} {
		if got := received(f, node); got != want {
			t.Errorf("%s got layers %q, want %q", node, got, want)
		}
	}
	if asked := strings.Count(strings.Join(f.Ran, "\n"), "berth image layers"); asked != 3 {
		t.Errorf("three nodes were asked %d times what they have", asked)
	}
	archive := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(archive, f.Saved, 0o600); err != nil {
		t.Fatal(err)
	}
	delete(f.Files, "dev-worker:image")
	if err := c.Load(t.Context(), "dev", Options{Archives: []string{archive}, Nodes: []string{"dev-worker"}}); err != nil || received(f, "dev-worker") != "own" {
		t.Errorf("an archive: %v, layers %q", err, received(f, "dev-worker"))
	}
	delete(f.Files, "dev-worker:image")
	o := Options{Archives: []string{"-"}, Nodes: []string{"dev-worker"}, Stdin: bytes.NewReader(f.Saved)}
	if err := c.Load(t.Context(), "dev", o); err != nil || received(f, "dev-worker") != "own" {
		t.Errorf("standard input: %v, layers %q", err, received(f, "dev-worker"))
	}
}

// TestLoadInterrupted: half of an archive is an error, and the reader does not wait for the rest.
func TestLoadInterrupted(t *testing.T) {
	f := clustertest.New(t)
	c, _ := loader(t, f, "")
	why := errors.New("somebody pressed Ctrl-C")
	for name, last := range map[string]func(*io.PipeWriter){"it ends": func(w *io.PipeWriter) { w.Close() }, "it waits": func(*io.PipeWriter) {}} {
		ctx, cancel := context.WithCancelCause(t.Context())
		from, to := io.Pipe()
		go func() {
			_, _ = to.Write(clustertest.SavedImage(t))
			cancel(why)
			last(to)
		}()
		err := c.Load(ctx, "dev", Options{Archives: []string{"-"}, Stdin: from})
		if !errors.Is(err, why) || !strings.Contains(err.Error(), "cannot load standard input into dev") || received(f, "dev-control-plane") != "" {
			t.Errorf("%s: %v, layers %q", name, err, received(f, "dev-control-plane"))
		}
		to.Close()
	}
}

// TestLoadOfWhatIsThere: if all nodes have the image, berth saves nothing. A node that has it under
// another name gets the new name.
func TestLoadOfWhatIsThere(t *testing.T) {
	f := clustertest.New(t)
	c, steps := loader(t, f, twoWorkers)
	f.IDs = map[string]string{"app:1": strings.TrimPrefix(clustertest.ImageID(), "sha256:")}
	told := layersTold(clustertest.ImageID(), "docker.io/library/app:1")
	f.Has = map[string]string{"dev-control-plane": told, "dev-worker": layersTold(clustertest.ImageID(), "docker.io/library/old:1"), "dev-worker2": told}
	f.Ran = nil
	if err := c.Load(t.Context(), "dev", Options{Images: []string{"app:1"}}); err != nil {
		t.Fatal(err)
	}
	tag := "dev-worker: berth image tag " + clustertest.ImageID() + " docker.io/library/app:1"
	for _, line := range f.Ran {
		if strings.HasPrefix(line, "save") || strings.Contains(line, "import") || strings.Contains(line, "image tag") && line != tag {
			t.Errorf("unwanted: %s", line)
		}
	}
	if !slices.Contains(f.Ran, tag) || !strings.Contains(strings.Join(*steps, "\n"), "3 nodes have app:1 already") {
		t.Errorf("ran %q, steps %q", f.Ran, *steps)
	}
}

// TestLoadAgain: an image that the node reported may have been removed since.
func TestLoadAgain(t *testing.T) {
	f := clustertest.New(t)
	c, _ := loader(t, f, "")
	f.Saved, f.IDs = clustertest.SavedImage(t), map[string]string{"app:1": "x"}
	f.Has = map[string]string{"dev-control-plane": layersTold("sha256:other", "o:1")}
	f.FailOnce = "berth image import -"
	if err := c.Load(t.Context(), "dev", Options{Images: []string{"app:1"}}); err != nil || received(f, "dev-control-plane") != "base own" {
		t.Errorf("%v, layers %q", err, received(f, "dev-control-plane"))
	}
}

func TestLoadRefuses(t *testing.T) {
	f := clustertest.New(t)
	c, _ := loader(t, f, twoWorkers)
	f.IDs = map[string]string{"a:1": "1"}
	archive := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(archive, clustertest.SavedImage(t), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Options{
		`image: "absent:1" not present locally`: {Images: []string{"a:1", "absent:1"}},
		`unknown node: "dev-worker3"`:           {Archives: []string{archive}, Nodes: []string{"dev-worker", "dev-worker3"}},
	} {
		if err := c.Load(t.Context(), "dev", o); !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := f.Stop(t.Context(), "dev-control-plane", "dev-worker", "dev-worker2"); err != nil {
		t.Fatal(err)
	}
	if err := c.Load(t.Context(), "dev", Options{Archives: []string{archive}}); !errors.Is(err, errs.State) {
		t.Errorf("stopped nodes: %v", err)
	}
}

// TestContainerdTellsImages: berth reads containerd's images from the output of ctr.
func TestContainerdTellsImages(t *testing.T) {
	r := &receiver{runtime: noderuntime.Containerd(), images: map[string][]string{}, refs: map[string]string{}}
	r.has.Blobs = map[digest.Digest]bool{}
	target := "sha256:" + strings.Repeat("a", 64)
	r.readContainerd("REF  TYPE  DIGEST  SIZE  PLATFORMS  LABELS\n"+
		"docker.io/library/app:1 application/vnd.oci.image.manifest.v1+json "+target+" 1.2 MiB linux/amd64 -\n"+
		"docker.io/library/app@"+target+" application/vnd.oci.image.manifest.v1+json "+target+" 1.2 MiB linux/amd64 -\n"+
		"sha256:1d application/vnd.oci.image.manifest.v1+json "+target+" 1.2 MiB linux/amd64 -\n", target+"\nsha256:b\n")
	if fmt.Sprint(r.images) != "map[sha256:1d:[docker.io/library/app:1]]" || !r.has.Blobs["sha256:b"] {
		t.Errorf("%v, %v", r.images, r.has.Blobs)
	}
	if lacks, there := r.missing("sha256:1d", []string{"docker.io/library/app:1", "docker.io/library/new:1"}); !there || fmt.Sprint(lacks) != "[docker.io/library/new:1]" {
		t.Errorf("%v, %v", lacks, there)
	}
	if got := strings.Join(r.tagCommand("sha256:1d", []string{"x:1"}), " "); got != "ctr --namespace=k8s.io images tag --force sha256:1d x:1" {
		t.Error(got)
	}
}
