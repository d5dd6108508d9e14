package importdirs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

// fake is a store whose archives are texts. An archive that begins with "bad" is refused, one that begins with "full" fails
// for want of space.
type fake struct {
	t      *testing.T
	events chan string
	// noted gets a value when an archive is recorded.
	noted  chan struct{}
	mu     sync.Mutex
	logged []string
}

func (f *fake) Import(_ context.Context, archive io.Reader, pin bool, report func(image.Progress)) ([]image.Image, error) {
	data, err := io.ReadAll(archive)
	if err != nil {
		return nil, err
	}
	report(image.Progress{Stage: "fetching", Done: int64(len(data))})
	text := string(data)
	f.events <- fmt.Sprintf("import %s %v", text, pin)
	switch {
	case strings.HasPrefix(text, "bad"):
		return nil, fmt.Errorf("the archive is truncated: %w", errs.Invalid)
	case strings.HasPrefix(text, "full"):
		return nil, fmt.Errorf("the disk is full: %w", errs.Exhausted)
	}
	return []image.Image{{ID: "sha256:1", Tags: []string{"registry.example/" + text + ":1"}}}, nil
}

// Write gets the log.
func (f *fake) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.logged = append(f.logged, string(line))
	for _, text := range []string{"imported the images", "its images are not imported again", "read again when the file changes"} {
		if strings.Contains(string(line), text) {
			f.noted <- struct{}{}
		}
	}
	return len(line), nil
}

func (f *fake) logCount(text string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, line := range f.logged {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (f *fake) want(events ...string) {
	f.t.Helper()
	for _, want := range events {
		select {
		case got := <-f.events:
			if got != want {
				f.t.Fatalf("%q, want %q", got, want)
			}
		case <-f.t.Context().Done():
			f.t.Fatalf("no %q", want)
		}
	}
}

// recorded waits until n more archives are recorded.
func (f *fake) recorded(n int) {
	f.t.Helper()
	for range n {
		select {
		case <-f.noted:
		case <-f.t.Context().Done():
			f.t.Fatal("an archive is not recorded")
		}
	}
}

func (f *fake) importer(root string, dirs ...string) *Importer {
	return New(Config{
		Root: root, Import: f.Import, Pinned: func() map[string]bool { return nil }, Unpin: func(context.Context, []string) error { return nil }, AwaitIdle: func(context.Context) error { return nil }, Jobs: image.Unlisted{},
		Log: slog.New(slog.NewTextHandler(f, nil)),
	}, Rules{Dirs: dirs, Pin: true})
}

// start runs an importer until stop is called.
func (f *fake) start(i *Importer, lost ...string) (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.Run(ctx, lost)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	f.t.Cleanup(stop)
	return stop
}

func newFake(t *testing.T) *fake {
	return &fake{t: t, events: make(chan string, 100), noted: make(chan struct{}, 100)}
}

// put makes a file in one step, with a time in the past: nobody writes to it.
func put(t *testing.T, dir, name, text string, ago time.Duration) {
	t.Helper()
	temp := filepath.Join(dir, ".new")
	at := time.Now().Add(-ago)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(temp, []byte(text), 0o600), os.Chtimes(temp, at, at), os.Rename(temp, filepath.Join(dir, name))); err != nil {
		t.Fatal(err)
	}
}

// TestArchivesAreImportedOnce: in the order of their names, a broken one among them, those that appear later, and those in a
// directory that appears later. A restart reads none again, except one that has changed.
func TestArchivesAreImportedOnce(t *testing.T) {
	f, root, dir := newFake(t), t.TempDir(), filepath.Join(t.TempDir(), "not/yet")
	first := t.TempDir()
	put(t, first, "b.tar.gz", "bad", time.Hour)
	put(t, first, "a.tar", "one", time.Hour)
	put(t, first, "c.tar.zst", "two", time.Hour)
	put(t, first, "readme.txt", "nothing", time.Hour)
	put(t, first, ".d.tar", "nothing", time.Hour)
	if err := errors.Join(os.Mkdir(filepath.Join(first, "e.tar"), 0o700), os.Symlink("nowhere", filepath.Join(first, "f.tar"))); err != nil {
		t.Fatal(err)
	}
	i := f.importer(root, first, dir)
	stop := f.start(i)
	f.want("import one true", "import bad true", "import two true")
	put(t, first, "g.tar", "three", time.Hour)
	f.want("import three true")
	put(t, dir, "h.TGZ", "four", time.Hour)
	f.want("import four true")
	i.SetRules(Rules{Dirs: []string{first, dir}})
	put(t, first, "b.tar.gz", "good", time.Minute)
	f.want("import good false")
	f.recorded(6)
	stop()
	if n := f.logCount("cannot import an archive"); n != 1 {
		t.Errorf("the broken archive was logged %d times", n)
	}

	// The same content with another time, and in another file, is not imported; one that has changed is.
	put(t, first, "a.tar", "one", time.Minute)
	put(t, first, "z.tar", "five", time.Minute)
	put(t, first, "c.tar.zst", "owt", time.Minute)
	stop = f.start(f.importer(root, first, dir))
	f.want("import owt true", "import five true")
	f.recorded(3)
	stop()

	// What the store has lost is imported again.
	put(t, first, "zz.tar", "six", time.Minute)
	stop = f.start(f.importer(root, first, dir), "registry.example/three:1", "registry.example/other:1")
	f.want("import three true", "import six true")
	stop()
}

// TestNamesAndOrder: archives are files with one of the suffixes, in any case. They come in the order of the directories, and in
// each in that of the bytes of their names.
func TestNamesAndOrder(t *testing.T) {
	f, first, second := newFake(t), t.TempDir(), t.TempDir()
	for n, name := range []string{"b.tar", "a.TGZ", "UP.TAR", "c.Tar.Zst", "d.tar.gz", "e.tar.zstd", "f.tzst", ".hidden.tar", ".tar", "tar", "g.tar.part", "h.zip"} {
		put(t, second, name, name, time.Hour+time.Duration(n)*time.Minute)
	}
	put(t, first, "z.tar", "z", time.Hour)
	if err := os.Mkdir(filepath.Join(first, "a.tar"), 0o755); err != nil {
		t.Fatal(err)
	}
	due, _ := f.importer(t.TempDir(), first, second).scan([]string{first, second}, time.Now())
	var got []string
	for _, one := range due {
		got = append(got, filepath.Base(one.path))
	}
	if want := []string{"z.tar", "UP.TAR", "a.TGZ", "b.tar", "c.Tar.Zst", "d.tar.gz", "e.tar.zstd", "f.tzst"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestAFileThatIsWrittenIsNotRead: before it has stayed as it is for a while.
func TestAFileThatIsWrittenIsNotRead(t *testing.T) {
	f, dir := newFake(t), t.TempDir()
	i := f.importer(t.TempDir(), dir)
	begin := time.Now().Add(-time.Hour)
	put(t, dir, "a.tar", "h", time.Hour)
	scan := func(at time.Duration, due bool, next time.Duration) {
		t.Helper()
		files, wait := i.scan([]string{dir, dir}, begin.Add(at))
		if (len(files) == 1) != due || wait.Round(time.Second) != next {
			t.Errorf("after %s: %v, %s", at, files, wait)
		}
	}
	write := func(text string, at time.Duration) {
		t.Helper()
		path := filepath.Join(dir, "a.tar")
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, begin.Add(at), begin.Add(at))); err != nil {
			t.Fatal(err)
		}
	}
	scan(time.Second, false, 2*time.Second)
	write("ha", 2*time.Second)
	scan(3*time.Second, false, 2*time.Second)
	write("half", 10*time.Hour) // another clock
	scan(4*time.Second, false, 3*time.Second)
	scan(6*time.Second, false, time.Second)
	scan(7*time.Second, true, 0)
	// The copying program gives the time of the original at the end.
	write("whole", -time.Hour)
	scan(8*time.Second, true, 0)
}

// TestAnImportIsTriedAgain: when the host was at fault, after a growing time, and not when an operator has cancelled it.
func TestAnImportIsTriedAgain(t *testing.T) {
	f, dir := newFake(t), t.TempDir()
	put(t, dir, "a.tar", "full", time.Hour)
	i := f.importer(t.TempDir(), dir)
	for _, want := range []time.Duration{minWait, 2 * minWait, 4 * minWait} {
		i.importOne(t.Context(), i.archives(dir)[0], true)
		if due, next := i.scan([]string{dir}, time.Now()); len(due) > 0 || next.Round(time.Second) != want {
			t.Errorf("%v, %s, want %s", due, next, want)
		}
		f.want("import full true")
	}
	i.cfg.Jobs = cancelling{}
	i.importOne(t.Context(), i.archives(dir)[0], true)
	if due, next := i.scan([]string{dir}, time.Now().Add(24*time.Hour)); len(due) > 0 || next != 0 {
		t.Errorf("after a cancellation: %v, %s", due, next)
	}
	put(t, dir, "a.tar", "fill", time.Minute)
	if due, _ := i.scan([]string{dir}, time.Now()); len(due) != 1 {
		t.Error("a changed file is not read")
	}
	if err := os.Remove(filepath.Join(dir, "a.tar")); err != nil {
		t.Fatal(err)
	}
	if i.scan([]string{dir}, time.Now()); len(i.later)+len(i.seen) != 0 {
		t.Errorf("%v, %v are kept of a file that is gone", i.later, i.seen)
	}
}

// cancelling cancels each job.
type cancelling struct{}

func (cancelling) Run(ctx context.Context, _ image.Job, work func(context.Context, image.Stage) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	cancel(fmt.Errorf("an operator has cancelled the job: %w", errs.Unavailable))
	return work(ctx, func(string, string, time.Time) {})
}

// TestAFileThatChangesWhileItIsRead is not recorded as imported.
func TestAFileThatChangesWhileItIsRead(t *testing.T) {
	f, dir := newFake(t), t.TempDir()
	put(t, dir, "a.tar", "one", time.Hour)
	i := f.importer(t.TempDir(), dir)
	i.cfg.Import = func(ctx context.Context, archive io.Reader, pin bool, report func(image.Progress)) ([]image.Image, error) {
		defer func() {
			if err := os.WriteFile(filepath.Join(dir, "a.tar"), []byte("one more"), 0o600); err != nil {
				t.Error(err)
			}
		}()
		return f.Import(ctx, archive, pin, report)
	}
	i.importOne(t.Context(), i.archives(dir)[0], true)
	if got, ok := i.imported().get(filepath.Join(dir, "a.tar")); ok {
		t.Errorf("recorded: %+v", got)
	}
	if f.logCount("has changed while it was read") != 1 {
		t.Error("it is not logged")
	}
}

// TestAListThatIsGarbage is none, and the next import replaces it.
func TestAListThatIsGarbage(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "\x00garbage", "another version": `{"version":7}`, "another shape": `{"version":1,"archives":{}}`, "nothing": "",
	} {
		t.Run(name, func(t *testing.T) {
			f, root, dir := newFake(t), t.TempDir(), t.TempDir()
			if err := os.WriteFile(filepath.Join(root, FileName), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			put(t, dir, "a.tar", "one", time.Hour)
			stop := f.start(f.importer(root, dir))
			f.want("import one true")
			f.recorded(1)
			stop()
			if all := readList(root, slog.New(slog.DiscardHandler)).all; len(all) != 1 {
				t.Errorf("the list is not replaced: %v", all)
			}
			if f.logCount("cannot read the list of imported archives") != 1 {
				t.Error("it is not logged")
			}
		})
	}
}

// TestTheListIsBounded: records of files that are gone are dropped at last.
func TestTheListIsBounded(t *testing.T) {
	l := &list{path: filepath.Join(t.TempDir(), FileName), log: slog.New(slog.DiscardHandler)}
	there := filepath.Join(t.TempDir(), "there.tar")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.all = []record{{Path: there}}
	for n := range maxRecords - 1 {
		l.all = append(l.all, record{Path: fmt.Sprintf("/gone/%d.tar", n)})
	}
	l.put(record{Path: there + "2"})
	if len(l.all) != 1 || !slices.ContainsFunc(l.all, func(r record) bool { return r.Path == there }) {
		t.Errorf("%d records", len(l.all))
	}
}

func TestReadsWaitForPullsForALittle(t *testing.T) {
	f, dir := newFake(t), t.TempDir()
	put(t, dir, "a.tar", "one", time.Hour)
	i := f.importer(t.TempDir(), dir)
	waited := 0
	i.cfg.AwaitIdle = func(ctx context.Context) error {
		waited++
		<-ctx.Done() // a pull that hangs
		return ctx.Err()
	}
	i.importOne(t.Context(), i.archives(dir)[0], true)
	f.want("import one true")
	if _, ok := i.imported().get(filepath.Join(dir, "a.tar")); !ok || waited == 0 {
		t.Errorf("imported: %v, waited %d times", ok, waited)
	}
}
