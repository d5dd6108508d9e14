package tasks_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/provisiontest"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// TestSwapInCompressedMemory: off turns it off, and has its generator make none at the next boot.
func TestSwapInCompressedMemory(t *testing.T) {
	h, generators := provisiontest.New(), "/usr/lib/systemd/system-generators"
	for _, dir := range []string{"/usr/lib", "/usr/lib/systemd", generators} {
		if err := h.Files().Mkdir(dir, provision.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Files().Write(generators+"/zram-generator", strings.NewReader("x"), provision.Attr{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if err := h.Kernel().SwapOn(t.Context(), "/dev/zram0"); err != nil {
		t.Fatal(err)
	}
	task, conf := tasks.Swap{}, provision.Object{Kind: provision.KindFile, Name: "/etc/systemd/zram-generator.conf"}
	objects, err := task.Objects(t.Context(), h)
	if err != nil || !slices.Contains(objects, conf) {
		t.Fatalf("objects %v, %v", objects, err)
	}
	before := map[provision.Object]provision.State{}
	for _, o := range objects {
		if before[o], err = tasks.Kinds()[o.Kind].Read(t.Context(), h, o.Name); err != nil {
			t.Fatal(err)
		}
	}
	if change, err := task.Check(t.Context(), h); err != nil || len(change.Diffs) != 2 {
		t.Errorf("change %+v, %v", change, err)
	}
	if err := task.Apply(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if change, err := task.Check(t.Context(), h); err != nil || !change.Empty() {
		t.Errorf("after the apply: change %+v, %v", change, err)
	}
	if swaps, err := h.Kernel().Swaps(); err != nil || len(swaps) > 0 || !provision.Exists(h.Files(), conf.Name) {
		t.Errorf("swap %v is on, %v", swaps, err)
	}
	for _, o := range objects {
		if err := tasks.Kinds()[o.Kind].Restore(t.Context(), h, o.Name, before[o], nil); err != nil {
			t.Error(err)
		}
	}
	if swaps, err := h.Kernel().Swaps(); err != nil || len(swaps) != 1 || provision.Exists(h.Files(), conf.Name) {
		t.Errorf("after the reset swap %v is on, %v", swaps, err)
	}
}

// TestSwapOfAnEarlierJournal: an earlier version neither recorded swap in compressed memory nor turned it off, so that a reset
// leaves it on.
func TestSwapOfAnEarlierJournal(t *testing.T) {
	h := provisiontest.New()
	for _, on := range []string{"/dev/zram0", "/dev/sda2"} {
		if err := h.Kernel().SwapOn(t.Context(), on); err != nil {
			t.Fatal(err)
		}
	}
	recorded := provision.State{Exists: true, Attrs: map[string]string{"on": ""}}
	if err := tasks.Kinds()["swap"].Restore(t.Context(), h, "all", recorded, nil); err != nil {
		t.Fatal(err)
	}
	if swaps, err := h.Kernel().Swaps(); err != nil || !slices.Equal(swaps, []string{"/dev/zram0"}) {
		t.Errorf("swap %v is on, %v", swaps, err)
	}
}

// TestLinkOfSomebodyElse: a file that berth shares with others is not replaced if it is a link: the mode would be that of a
// link, which everybody may write to, or one with which everybody can read it.
func TestLinkOfSomebodyElse(t *testing.T) {
	for path, c := range map[string]struct {
		content, clean string
		task           provision.Task
	}{
		"/etc/fstab":              {"/swapfile none swap sw 0 0\n", "UUID=1 / ext4 defaults 0 1\n", tasks.Swap{}},
		"/etc/docker/daemon.json": {`{"proxies":{"http-proxy":"http://me:secret@proxy"}}`, `{"mtu": 1400}`, tasks.JSONKeys{Path: "/etc/docker/daemon.json", Set: map[string]any{"mtu": 1400}}},
	} {
		h := provisiontest.New()
		if err := h.Files().Mkdir("/etc/docker", provision.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
		write := func(content string) {
			t.Helper()
			if err := h.Files().Write("/var/lib/managed", strings.NewReader(content), provision.Attr{Mode: 0o600}); err != nil {
				t.Fatal(err)
			}
		}
		write(c.content)
		if err := h.Files().Link("/var/lib/managed", path, provision.Attr{}); err != nil {
			t.Fatal(err)
		}
		before := h.Tree()
		if change, err := c.task.Check(t.Context(), h); !errors.Is(err, errs.State) {
			t.Errorf("%s: change %+v, %v", path, change, err)
		}
		if err := c.task.Apply(t.Context(), h); !errors.Is(err, errs.State) || !slices.Equal(h.Tree(), before) {
			t.Errorf("%s: applied with %v: %v", path, err, h.Tree())
		}
		write(c.clean) // nothing to change
		if change, err := c.task.Check(t.Context(), h); err != nil || !change.Empty() {
			t.Errorf("%s: change %+v, %v", path, change, err)
		}
	}
}
