//go:build integration

package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/test/harness"
)

// TestBundleForAnAirGap: an archive that one node makes from a list has all that another node, without a registry, needs for
// its pods. Its list of digests makes the same bytes again.
func TestBundleForAnAirGap(t *testing.T) {
	from := harness.Start(t, harness.Options{})
	from.NeedsPart(t, harness.ImportDirs)
	pushed, err := imagetest.Build(imagetest.Spec{Name: "app:1", Files: []imagetest.File{{Path: "f", Content: []byte("1")}}})
	if err != nil {
		t.Fatal(err)
	}
	registry := &imagetest.Registry{}
	registry.Push("team/app", "1", pushed)
	ref, dir := from.Serve(registry)+"/team/app:1", t.TempDir()
	list := filepath.Join(dir, "images.txt")
	if err := os.WriteFile(list, []byte(fmt.Sprintf("# all of the node\n%s\n%s # with a program\n", ref, harness.Busybox)), 0o600); err != nil {
		t.Fatal(err)
	}
	imports, again := filepath.Join(dir, "imports"), filepath.Join(dir, "again.tar")
	if err := os.Mkdir(imports, 0o755); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(imports, "images.tar")
	from.MustCLI("image", "bundle", "-f", list, "-o", archive)
	from.MustCLI("image", "bundle", "-f", filepath.Join(imports, "images.lock"), "-o", again)
	first, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(again)
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("%v: the list of digests makes another archive", err)
	}
	bill, err := os.ReadFile(filepath.Join(imports, "images.spdx.json"))
	if err != nil || !strings.Contains(string(bill), ref) || !strings.Contains(string(bill), harness.Busybox) {
		t.Errorf("%v: the bill of materials lacks an image: %s", err, bill)
	}

	to := harness.Start(t, harness.Options{NoImages: true, Config: fmt.Sprintf("[image]\nimport_dirs = [%q]\n", imports)})
	for _, image := range []string{ref, harness.Busybox} {
		var status *runtimeapi.ImageStatusResponse
		to.Await("the import of "+image, func() bool {
			status, err = to.Images.ImageStatus(to.Ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
			return err != nil || status.Image != nil
		})
		if err != nil || !status.Image.Pinned {
			t.Errorf("%s: %v, %v, want a pinned image", image, status, err)
		}
	}
	pod := to.RunPod("offline", "sleep 1000")
	wantOut(t, to, pod.Container, [][2]string{{"echo runs", "runs"}})
}
