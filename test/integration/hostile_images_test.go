//go:build integration

package integration

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/imagetest/hostileimage"
	"github.com/berthrun/berth/test/harness"
)

const (
	// hostileMemory bounds what the daemon takes for a hostile image beside what it has, in MiB, unless the row says
	// otherwise. hostileError bounds the text of an error, which becomes an event of a pod.
	hostileMemory, hostileError = 64, 1024
	hostilePage                 = "../../docs/hostile-images.md"
)

// hostileImage is one row: an archive, or an image at a registry.
type hostileImage struct {
	// name says what it has, lesson where others were hit.
	name, lesson string
	archive      func(t *testing.T, outside string) io.Reader
	// pull fills a registry, whose address is host.
	pull func(t *testing.T, r *imagetest.Registry, host string)
	// refused is in the error, and code is its code, InvalidArgument unless set. If refused is "", berth takes the image, and
	// inside says what becomes of it, for the page.
	refused, inside string
	code            codes.Code
	// check looks at the registry after the pull.
	check func(t *testing.T, r *imagetest.Registry)
	// memory is the bound in MiB, 0 for the usual one.
	memory int64
	// long rows are for runs by hand.
	long bool
}

// TestHostileArchivesOfImages imports archives that were made to harm.
func TestHostileArchivesOfImages(t *testing.T) {
	cases := append(savedImages(), layoutsOfImages()...)
	hostileImages(t, cases, false)
	hostileimage.Page(t, hostilePage, "## Archives of images", hostileRows("an archive with", cases))
}

// TestHostileImagesOfRegistries pulls images that were made to harm.
func TestHostileImagesOfRegistries(t *testing.T) {
	hostileImages(t, imagesOfRegistries(), false)
	hostileimage.Page(t, hostilePage, "## Images of registries", hostileRows("a registry with", imagesOfRegistries()))
}

// hostileRows are the rows of the page.
func hostileRows(column string, cases []hostileImage) [][]string {
	rows := [][]string{{column, "seen in", "berth"}}
	for _, c := range cases {
		rows = append(rows, []string{c.name, c.lesson, hostileimage.Does(c.refused, c.inside)})
	}
	return rows
}

// hostileImages gives each image to one daemon, and prints what became of them.
func hostileImages(t *testing.T, cases []hostileImage, long bool) {
	b := harness.Start(t, harness.Options{NoImages: true})
	outside := filepath.Join(b.Dir, "outside")
	hostileimage.Decoy(t, outside)
	watched := hostileimage.Watch(t, []string{outside}, nil)
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "image\tseen in\toutcome\tmemory of the daemon")
	for _, c := range cases {
		if c.long != long {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			fmt.Fprintln(table, c.name+"\t"+c.lesson+"\t"+c.try(t, b, outside))
			for _, difference := range watched.Differences(t) {
				t.Errorf("outside of the store: %s", difference)
			}
		})
	}
	table.Flush()
	t.Logf("\n%s", text.String())
}

// try gives the image to the daemon, and returns the rest of its row.
func (c hostileImage) try(t *testing.T, b *harness.Berth, outside string) string {
	t.Helper()
	before := startPeak(t, b.DaemonPid())
	err := c.give(t, b, outside)
	took := peakOf(t, b.DaemonPid()) - before
	limit := c.memory
	if limit == 0 {
		limit = hostileMemory
	}
	if took > limit<<20 {
		t.Errorf("the daemon took %d MiB, at most %d are the image's due", took>>20, limit)
	}
	code := c.code
	if code == codes.OK {
		code = codes.InvalidArgument
	}
	switch {
	case c.refused == "" && err != nil:
		t.Errorf("refused: %.1000v", err)
	case c.refused != "" && (status.Code(err) != code || !strings.Contains(err.Error(), c.refused)):
		t.Errorf("error %.1000v, want code %s and %q", err, code, c.refused)
	case err != nil && len(err.Error()) > hostileError:
		t.Errorf("the error has %d bytes: %.1000v", len(err.Error()), err)
	}
	removeImages(t, b, err == nil)
	if err != nil {
		return fmt.Sprintf("refused: %.110s\t%d KiB", status.Convert(err).Message(), max(took, 0)>>10)
	}
	return fmt.Sprintf("taken\t%d KiB", max(took, 0)>>10)
}

func (c hostileImage) give(t *testing.T, b *harness.Berth, outside string) error {
	t.Helper()
	if c.archive != nil {
		_, err := b.Import(c.archive(t, outside))
		return err
	}
	r := &imagetest.Registry{}
	host := b.Serve(r)
	c.pull(t, r, host)
	_, err := b.Images.PullImage(b.Ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: host + "/app:1"}})
	if c.check != nil {
		c.check(t, r)
	}
	return err
}

// removeImages removes all images. There are some only if the last one was taken.
func removeImages(t *testing.T, b *harness.Berth, taken bool) {
	t.Helper()
	list, err := b.Images.ListImages(b.Ctx(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Images) > 0 != taken {
		t.Errorf("the store has %d images", len(list.Images))
	}
	for _, img := range list.Images {
		if _, err := b.Images.RemoveImage(b.Ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: img.Id}}); err != nil {
			t.Error(err)
		}
	}
}

// startPeak begins a new peak of the memory of a process, and returns what the process has now.
func startPeak(t *testing.T, pid int) int64 {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
	return memoryOf(t, pid, "VmRSS:")
}

// peakOf is the most memory that a process has had since startPeak.
func peakOf(t *testing.T, pid int) int64 { return memoryOf(t, pid, "VmHWM:") }

func memoryOf(t *testing.T, pid int, field string) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), field)
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
