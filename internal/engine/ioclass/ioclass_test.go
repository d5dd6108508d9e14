package ioclass

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/require"
)

func TestChosenClass(t *testing.T) {
	pod := map[string]string{"blockio.resources.beta.kubernetes.io/pod": "slow", "blockio.resources.beta.kubernetes.io/container.db": "fast", "rdt.resources.beta.kubernetes.io/pod": "gold"}
	own := map[string]string{"io.kubernetes.cri.blockio-class": "own"}
	for _, c := range []struct {
		container    Container
		block, field string
	}{
		{Container{Name: "web", Pod: pod}, "slow", `sandbox_config.annotations["blockio.resources.beta.kubernetes.io/pod"]`},
		{Container{Name: "db", Pod: pod}, "fast", `sandbox_config.annotations["blockio.resources.beta.kubernetes.io/container.db"]`},
		{Container{Name: "db", Pod: pod, Annotations: own}, "own", `config.annotations["io.kubernetes.cri.blockio-class"]`},
	} {
		if got := BlockIOOf(&c.container); got == nil || *got != (Chosen{c.block, c.field}) {
			t.Errorf("%+v: %+v, want %s of %s", c.container, got, c.block, c.field)
		}
		if got := RDTOf(&c.container); got == nil || got.Name != "gold" {
			t.Errorf("%+v: %+v", c.container, got)
		}
	}
	if got := BlockIOOf(&Container{Name: "db"}); got != nil {
		t.Errorf("without annotations: %+v", got)
	}
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "blockio.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// disk makes the node of a disk that need not exist, with a link to it, and returns the directory.
func disk(t *testing.T) string {
	t.Helper()
	require.Root(t)
	dir := t.TempDir()
	if err := unix.Mknod(filepath.Join(dir, "disk"), unix.S_IFBLK|0o600, int(unix.Mkdev(259, 77))); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(dir, "terminal"), unix.S_IFCHR|0o600, int(unix.Mkdev(5, 0))); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("disk", filepath.Join(dir, "link-SSD")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestBlockIO(t *testing.T) {
	dir := disk(t)
	path := write(t, strings.ReplaceAll(`Classes:
  slow:
  - Weight: 80
  - Devices: [DIR/*, /no/such/disk]
    ThrottleReadBps: 50M
    ThrottleWriteBps: 1Ki
    ThrottleReadIOPS: 10k
    ThrottleWriteIOPS: 5
    Weight: "50"
  - Devices: [DIR/*SSD*]
    ThrottleReadBps: 100M
  nothing: []
`, "DIR", dir))
	got, err := BlockIO(path, "slow")
	if err != nil {
		t.Fatal(err)
	}
	rate := func(n uint64) []specs.LinuxThrottleDevice {
		d := specs.LinuxThrottleDevice{Rate: n}
		d.Major, d.Minor = 259, 77
		return []specs.LinuxThrottleDevice{d}
	}
	eighty, fifty := uint16(80), uint16(50)
	device := specs.LinuxWeightDevice{Weight: &fifty}
	device.Major, device.Minor = 259, 77
	want := &specs.LinuxBlockIO{
		Weight: &eighty, WeightDevice: []specs.LinuxWeightDevice{device},
		ThrottleReadBpsDevice: rate(100_000_000), ThrottleWriteBpsDevice: rate(1024), ThrottleReadIOPSDevice: rate(10_000), ThrottleWriteIOPSDevice: rate(5),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err := BlockIO(path, "nothing"); err != nil || !cmp.Equal(got, &specs.LinuxBlockIO{}) {
		t.Errorf("a class without parameters: %+v %v", got, err)
	}
	if err := CheckBlockIO(path); err != nil {
		t.Error(err)
	}
	_, err = BlockIO(path, "fast")
	if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "nothing, slow") {
		t.Errorf("an unknown class: %v", err)
	}
	_, err = BlockIO("", "slow")
	var notEnabled *NotEnabledError
	if !errors.As(err, &notEnabled) || !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "runtime.blockio_config_file") {
		t.Errorf("without a file: %v", err)
	}
	if err := CheckBlockIO(""); err != nil {
		t.Error(err)
	}
}

func TestBadBlockIO(t *testing.T) {
	for content, want := range map[string]string{
		"Classes: 5":                     "cannot unmarshal",
		"classes: {}\nother: 1":          `unknown field "other"`,
		"Classes: {x: [{Weight: 9}]}":    `Classes["x"][0].Weight: 9: want 10 to 1000`,
		"Classes: {x: [{Weight: 2000}]}": `Classes["x"][0].Weight: 2000: want`,
		"Classes: {x: [{}, {Devices: [/dev/x], ThrottleReadBps: 5Q}]}":     `Classes["x"][1].ThrottleReadBps: 5Q`,
		"Classes: {x: [{Devices: [/dev/x], ThrottleWriteIOPS: -1}]}":       `ThrottleWriteIOPS: -1: want 0`,
		"Classes: {x: [{Devices: [/dev/x], ThrottleWriteIOPS: [1]}]}":      "ThrottleWriteIOPS: [1]: want a number",
		"Classes: {x: [{ThrottleReadIOPS: 5}]}":                            "ThrottleReadIOPS: needs Devices",
		"Classes: {x: [{Devices: ['/dev/[']}]}":                            `Devices[0]: "/dev/[": want`,
		"Classes: {x: [{Devices: [sda]}]}":                                 `Devices[0]: "sda": want`,
		"Classes: {x: [" + strings.Repeat(" ", maxFile) + "{Weight: 80}]}": "longer than",
	} {
		path := write(t, content)
		err := CheckBlockIO(path)
		if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%.60s: %v, want %q", content, err, want)
		}
	}
	if err := CheckBlockIO("/no/such/file"); !errors.Is(err, errs.Unavailable) || errors.Is(err, errs.NotFound) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestRDT(t *testing.T) {
	root := t.TempDir()
	var notEnabled *NotEnabledError
	if _, err := RDT(root, "gold"); !errors.As(err, &notEnabled) || !strings.Contains(err.Error(), root) {
		t.Errorf("without resctrl: %v", err)
	}
	for _, group := range []string{"", "gold", "silver", "info/L3", "mon_groups"} {
		if err := os.MkdirAll(filepath.Join(root, group), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(group, "info") || group == "mon_groups" {
			continue
		}
		if err := os.WriteFile(filepath.Join(root, group, "schemata"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := RDT(root, "gold")
	if err != nil || got.ClosID != "gold" {
		t.Errorf("%+v %v", got, err)
	}
	for _, class := range []string{"bronze", "", "..", "info", "mon_groups", "gold/x", "../" + filepath.Base(root) + "/gold"} {
		if _, err := RDT(root, class); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "gold, silver") {
			t.Errorf("%q: %v", class, err)
		}
	}
}

// FuzzClasses: a file is refused, or each of its classes is refused with its field, or has rates for devices only.
func FuzzClasses(f *testing.F) {
	f.Add([]byte("Classes:\n  a:\n  - Weight: 80\n  - Devices: [/dev/sd*]\n    ThrottleReadBps: 5M\n"))
	f.Add([]byte(`{"classes":{"a":[{"weight":1e3,"devices":null}],"b":null}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		classes, err := parseClasses(data)
		if err != nil {
			return
		}
		for _, list := range classes {
			made := &specs.LinuxBlockIO{}
			for i := range list {
				if list[i].Devices != nil {
					list[i].Devices = []string{"/dev/null"} // no other file of the machine
				}
				if err := list[i].addTo(made); err != nil {
					return
				}
			}
			if w := made.Weight; w != nil && (*w < minWeight || *w > maxWeight) || len(made.ThrottleReadBpsDevice) > 0 {
				t.Errorf("%q became %+v", data, made)
			}
		}
	})
}
