package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type thing struct {
	Name   string                               `json:"name"`
	Count  int                                  `json:"count"`
	Config Message[*runtimeapi.ContainerConfig] `json:"config"`
}

func open(t *testing.T, dir string, disk Disk) (*Dir[thing], []Quarantined) {
	t.Helper()
	d, bad, err := Open(Options[thing]{
		Path: filepath.Join(dir, "things"), Quarantine: filepath.Join(dir, "quarantine"), Disk: disk,
		Name: func(v *thing) string { return v.Name },
	})
	if err != nil {
		t.Fatal(err)
	}
	return d, bad
}

func TestRecordsSurviveReopening(t *testing.T) {
	dir := t.TempDir()
	d, _ := open(t, dir, nil)
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "web", Attempt: 3},
		Envs:     []*runtimeapi.KeyValue{{Key: "RAW", Value: []byte{0xff, 0x00, 'x'}}},
		Labels:   map[string]string{"a": "b"},
	}
	if err := d.Create("abc1", &thing{Name: "one", Config: MessageOf(config)}); err != nil {
		t.Fatal(err)
	}
	if err := d.Create("abd2", &thing{Name: "two"}); err != nil {
		t.Fatal(err)
	}
	before, _ := d.Get("abc1")
	if _, err := d.Update("abc1", func(v *thing) error { v.Count = 7; v.Name = "uno"; return nil }); err != nil {
		t.Fatal(err)
	}
	if before.Count != 0 {
		t.Error("Update changed a snapshot that was handed out")
	}
	if err := d.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := d.Delete("abd2"); err != nil {
		t.Fatal(err)
	}

	d, bad := open(t, dir, nil)
	if len(bad) != 0 {
		t.Fatalf("quarantined: %v", bad)
	}
	got, err := d.Get("abc1")
	if err != nil {
		t.Fatal(err)
	}
	if got.Count != 7 || !proto.Equal(got.Config.Get(), config) {
		t.Errorf("read back %+v", got)
	}
	if _, err := d.Get("abd2"); !errors.Is(err, errs.NotFound) {
		t.Errorf("deleted record: %v", err)
	}
	if id, _, ok := d.ByName("uno"); !ok || id != "abc1" {
		t.Errorf("ByName(uno) = %q, %v", id, ok)
	}
	if _, _, ok := d.ByName("one"); ok {
		t.Error("the old name still leads somewhere")
	}
}

func TestResolve(t *testing.T) {
	d, _ := open(t, t.TempDir(), nil)
	for _, id := range []string{"aa11", "aa22", "b"} {
		if err := d.Create(id, &thing{Name: id}); err != nil {
			t.Fatal(err)
		}
	}
	hide22 := func(v *thing) bool { return v.Name != "aa22" }
	for _, c := range []struct {
		prefix  string
		visible func(*thing) bool
		want    string
		kind    error
	}{
		{"b", nil, "b", nil},
		{"aa1", nil, "aa11", nil},
		{"aa", nil, "", errs.Invalid},
		{"aa", hide22, "aa11", nil},
		{"aa22", hide22, "aa22", nil},
		{"c", nil, "", errs.NotFound},
		{"", nil, "", errs.Invalid},
	} {
		got, err := d.Resolve(c.prefix, c.visible)
		if got != c.want || !errors.Is(err, c.kind) {
			t.Errorf("Resolve(%q) = %q, %v; want %q, %v", c.prefix, got, err, c.want, c.kind)
		}
	}
	_, err := d.Resolve("aa", nil)
	if !strings.Contains(err.Error(), "aa11, aa22") {
		t.Errorf("the error does not name the candidates: %v", err)
	}
	if err := d.Create("b", &thing{}); !errors.Is(err, errs.Exists) {
		t.Errorf("second Create: %v", err)
	}
}

func TestBadFilesAreQuarantined(t *testing.T) {
	dir := t.TempDir()
	d, _ := open(t, dir, nil)
	if err := d.Create("good", &thing{Name: "good"}); err != nil {
		t.Fatal(err)
	}
	bad := map[string]string{
		"cut.json":                    `{"version":1,"id":"cut","record":{"na`,
		"zero.json":                   ``,
		"future.json":                 `{"version":99,"id":"future","record":{}}`,
		"other.json":                  `{"version":1,"id":"good","record":{}}`,
		"none.json":                   `{"version":1,"id":"none"}`,
		"stray":                       `x`,
		sysfile.TempPrefix + "x.json": `half`,
	}
	for name, content := range bad {
		if err := os.WriteFile(filepath.Join(dir, "things", name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, reports := open(t, dir, nil)
	if len(reports) != len(bad)-1 {
		t.Errorf("reports: %v", reports)
	}
	for _, r := range reports {
		if filepath.Dir(r.Path) != filepath.Join(dir, "quarantine") {
			t.Errorf("%s was not moved", r.Path)
		}
		if _, err := os.Stat(r.Path); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{"good"}, d.IDs()); diff != "" {
		t.Error(diff)
	}
	left, err := os.ReadDir(filepath.Join(dir, "things"))
	if err != nil || len(left) != 1 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

// claimant is a record that contains its own id.
type claimant struct{ ID string }

func (c *claimant) RecordID() string { return c.ID }

// The undo of a record uses the id in it. A record whose id differs from its file name would undo
// objects of another record.
func TestRecordsOfAnotherIDAreQuarantined(t *testing.T) {
	dir := t.TempDir()
	for id, says := range map[string]string{"good": "good", "other": "good", "path": "../..", "none": ""} {
		data := fmt.Sprintf(`{"version":1,"id":%q,"record":{"ID":%q}}`, id, says)
		if err := os.WriteFile(filepath.Join(dir, id+".json"), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, bad, err := Open(Options[claimant]{Path: dir, Quarantine: filepath.Join(t.TempDir(), "quarantine")})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"good"}, d.IDs()); diff != "" || len(bad) != 3 {
		t.Errorf("%s, quarantined: %v", diff, bad)
	}
}

// failing is a Disk whose writes take effect and then return an error.
type failing struct {
	Disk
	fail bool
}

func (f *failing) Write(path string, data []byte) error {
	if err := f.Disk.Write(path, data); err != nil || !f.fail {
		return err
	}
	return errors.New("injected")
}

func TestFailedWriteChangesNothing(t *testing.T) {
	dir := t.TempDir()
	disk := &failing{Disk: FileSystem{}}
	d, _ := open(t, dir, disk)
	if err := d.Create("a", &thing{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	disk.fail = true
	if err := d.Create("b", &thing{Name: "b"}); err == nil {
		t.Error("Create did not fail")
	}
	if _, err := os.Stat(filepath.Join(dir, "things", "b.json")); !os.IsNotExist(err) {
		t.Errorf("file of the failed record: %v", err)
	}
	if _, err := d.Update("a", func(v *thing) error { v.Count = 1; return nil }); err == nil {
		t.Error("Update did not fail")
	}
	if got, _ := d.Get("a"); got.Count != 0 {
		t.Error("the failed Update is seen")
	}
	disk.fail = false
	if err := d.Create("b", &thing{Name: "b"}); err != nil {
		t.Errorf("the name of a failed Create is not free: %v", err)
	}
}

func TestConcurrentUpdatesAreNotLost(t *testing.T) {
	dir := t.TempDir()
	d, _ := open(t, dir, nil)
	if err := d.Create("a", &thing{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if _, err := d.Update("a", func(v *thing) error { v.Count++; return nil }); err != nil {
					t.Error(err)
				}
				d.All()
			}
		})
	}
	wg.Wait()
	d, _ = open(t, dir, nil)
	if got, _ := d.Get("a"); got.Count != 400 {
		t.Errorf("count %d on disk, want 400", got.Count)
	}
}

func TestChangesAreNotifiedInOrder(t *testing.T) {
	var told []string
	show := func(v *thing) string {
		if v == nil {
			return "-"
		}
		return v.Name
	}
	d, _, err := Open(Options[thing]{
		Path:    filepath.Join(t.TempDir(), "things"),
		Changed: func(old, new *thing) { told = append(told, show(old)+">"+show(new)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("no")
	_, updateErr := d.Update("x", func(*thing) error { return nil })
	createErr := d.Create("x", &thing{Name: "a"})
	_, refused := d.Update("x", func(*thing) error { return failed })
	_, changeErr := d.Update("x", func(v *thing) error { v.Name = "b"; return nil })
	if !errors.Is(updateErr, errs.NotFound) || !errors.Is(refused, failed) || createErr != nil || changeErr != nil {
		t.Fatal(updateErr, createErr, refused, changeErr)
	}
	for range 2 {
		if err := d.Delete("x"); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"->a", "a>b", "b>-"}, told); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestSingular(t *testing.T) {
	for things, want := range map[string]string{"sandboxes": "sandbox", "containers": "container", "x": "x"} {
		if got := singular(things); got != want {
			t.Errorf("one of %s is a %s, want %s", things, got, want)
		}
	}
}
