package leaks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/finding"
)

// TestWhatBerthHasWritten: a process that has berth's directory and does not answer, a clock that is behind berth's files,
// and damaged databases of images are each found by their check. A machine without these faults, or without a berth, has
// none. Real ones are planted in test/integration.
func TestWhatBerthHasWritten(t *testing.T) {
	database := strings.Repeat("\x00", 16) + "\xed\xda\x0c\xed" + strings.Repeat("\x00", 4076)
	opened := func(w *world) {
		for _, name := range []string{"metadata.db", "snapshots/metadata.db"} {
			w.write(w.file(w.root, "images", name), database)
		}
		w.file(w.root, "images/content/blobs/x")
	}
	self := func(string) (int, error) { return os.Getpid(), nil }
	for _, c := range []struct {
		name  string
		plant func(w *world, f *Facts)
		id    string
		level finding.Level
		// object and evidence are parts.
		object, evidence string
	}{
		{"well", func(*world, *Facts) {}, "", "", "", ""},
		{"no berth runs", func(w *world, _ *Facts) { w.down() }, "", "", "", ""},
		{"no store", func(w *world, _ *Facts) { w.remove(w.root + "/images") }, "", "", "", ""},
		{"a socket that is gone", func(w *world, f *Facts) { w.down(); f.held = self }, "daemon", finding.Problem, "berth.sock", "that socket is not there. Somebody removed it, or this berth listens elsewhere: " + os.Args[0]},
		{"a berth that hangs", func(w *world, f *Facts) {
			f.held, f.Socket = self, w.state
			w.asked = func(Answer) (Answer, error) { return Answer{}, errors.New("no answer") }
		}, "daemon", finding.Problem, "", ": no answer"},
		{"a clock that is a little behind", func(w *world, _ *Facts) { later(t, w, time.Minute) }, "", "", "", ""},
		{"a clock that was set back by an hour", func(w *world, _ *Facts) { later(t, w, time.Hour) }, "clock", finding.Warning, "clock", "the clock is slow by 1h0m0s or more"},
		{"a clock that was lost", func(w *world, _ *Facts) { later(t, w, 72*time.Hour) }, "clock", finding.Problem, "clock", "berth wrote "},
		{"an empty database", func(w *world, _ *Facts) { w.write(w.root+"/images/metadata.db", "") }, "image-files", finding.Warning, "images/metadata.db", "is empty"},
		{"a missing database", func(w *world, _ *Facts) { w.remove(w.root + "/images/metadata.db") }, "image-files", finding.Warning, "images/metadata.db", "is missing"},
		{"a damaged database", func(w *world, _ *Facts) { w.write(w.root+"/images/snapshots/metadata.db", strings.Repeat("x", 70000)) }, "image-files", finding.Warning, "snapshots/metadata.db", "is damaged"},
		{"a lost image", func(w *world, _ *Facts) {
			w.write(w.root+"/images/lost.json", `{"version":1,"images":[{"names":["docker.io/library/gone:1","docker.io/library/gone@sha256:1"],"noPull":true}]}`)
		}, "image-files", finding.Problem, "docker.io/library/gone:1", "has lost image docker.io/library/gone:1: "},
		{"a lost image that is pulled again", func(w *world, _ *Facts) {
			w.write(w.root+"/images/lost.json", `{"version":1,"images":[{"names":["docker.io/library/gone:1#wasi/wasm"]}]}`)
		}, "image-files", finding.Warning, "docker.io/library/gone:1", "berth pulls it again in the background"},
		{"a damaged list of lost images", func(w *world, _ *Facts) { w.write(w.root+"/images/lost.json", "{") }, "", "", "", ""},
		{"an archive that cannot be imported", func(w *world, _ *Facts) { w.imported("it is truncated") }, "image-files", finding.Warning, "bad.tar", "bad.tar of image.import_dirs is not imported: it is truncated"},
		{"an archive that could not be imported and has changed", func(w *world, _ *Facts) {
			w.imported("it is truncated")
			w.write(w.root+"/bad.tar", "another one")
		}, "", "", "", ""},
		{"an archive that was imported", func(w *world, _ *Facts) { w.imported("") }, "", "", "", ""},
		{"a link in the place of a directory", func(w *world, _ *Facts) {
			w.remove(w.root + "/images/content")
			if err := os.Symlink("/elsewhere", w.root+"/images/content"); err != nil {
				t.Fatal(err)
			}
		}, "image-files", finding.Problem, "images/content", "is no directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := recorded(t)
			opened(w)
			f := w.facts()
			f.Socket = filepath.Join(w.state, "berth.sock")
			f.held = func(string) (int, error) { return 0, nil }
			c.plant(w, f)
			before := w.snapshot()
			var all []finding.Finding
			for _, one := range doctor.Findings(doctor.ExamineAtOnce(t.Context(), f, RecordChecks())) {
				if one.Level != finding.OK {
					all = append(all, one)
				}
			}
			want := 1
			if c.id == "" {
				want = 0
			}
			if len(all) != want || want == 1 && (all[0].ID != c.id || all[0].Level != c.level || !strings.Contains(all[0].Object, c.object) || !strings.Contains(all[0].Evidence, c.evidence) || all[0].Fix == "") {
				t.Errorf("want %+v, got %+v", c, all)
			}
			if w.snapshot() != before {
				t.Error("doctor changes something")
			}
		})
	}
}

// later gives the record of an attachment a time in the future.
func later(t *testing.T, w *world, by time.Duration) {
	at := time.Now().Add(by)
	if err := os.Chtimes(filepath.Join(w.root, "pods/attachments", sandboxID+".json"), at, at); err != nil {
		t.Fatal(err)
	}
}

// imported writes the list of imported archives, which has one with an error.
func (w *world) imported(problem string) {
	w.t.Helper()
	path := filepath.Join(w.root, "bad.tar")
	w.write(path, "an archive")
	info, err := os.Stat(path)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(w.root+"/images/imported.json", fmt.Sprintf(`{"version":1,"archives":[{"path":%q,"size":%d,"time":%d,"inode":1,"error":%q}]}`, path, info.Size(), info.ModTime().UnixNano(), problem))
}
