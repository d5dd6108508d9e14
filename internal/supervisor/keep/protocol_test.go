package keep

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

func TestErrorKindsSurviveTheSocket(t *testing.T) {
	unknown := []error{errs.Exists, errs.Unavailable, errs.Deadline, errs.Denied} // never from the keeper
	for _, kind := range errs.Kinds() {
		c := codeOf(fmt.Errorf("something: %w", kind))
		a := answer{frame: frame{code: c, payload: []byte("something")}}
		if !errors.Is(a.err(), kind) && !slices.Contains(unknown, kind) {
			t.Errorf("%v became %v", kind, a.err())
		}
	}
	if err := (answer{frame: frame{code: codeOf(errors.New("odd")), payload: []byte("odd")}}).err(); err == nil || errs.Kind(err) != nil {
		t.Errorf("an error without kind became %v", err)
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(frame{op: opHold, seq: 7, payload: []byte("key")}.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeFrame(b)
		if err != nil {
			return
		}
		again := got.encode()
		if !bytes.Equal(again[1:3], b[1:3]) || !bytes.Equal(again[4:], b[4:]) {
			t.Errorf("%x became %x", b, again)
		}
		decodeIdentity(got.payload)
		decodeHello(got.payload)
		decodeRecord(got.payload)
	})
}

func TestNewerFramesAreRefused(t *testing.T) {
	b := frame{op: opReady}.encode()
	b[0] = frameVersion + 1
	if _, err := decodeFrame(b); err != nil {
		t.Errorf("one version apart: %v", err)
	}
	b[0]++
	if _, err := decodeFrame(b); !errors.Is(err, errs.Unsupported) {
		t.Errorf("two versions apart: %v", err)
	}
}

func TestHoldRefusesAndCloses(t *testing.T) {
	h := &holdings{limit: 4}
	pipe := func() []int {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		// The descriptors stay open without the files, because holdings now own them.
		fds := []int{duplicate(t, r), duplicate(t, w)}
		r.Close()
		w.Close()
		return fds
	}
	if err := h.hold("a", pipe()); err != nil {
		t.Fatal(err)
	}
	replaced, _ := h.fds.Get("a")
	if err := h.hold("a", pipe()); err != nil || h.count != 2 {
		t.Fatalf("%d held: %v", h.count, err)
	}
	if now, _ := h.fds.Get("a"); slices.Equal(replaced, now) {
		t.Error("hold did not replace")
	}
	if err := h.hold("b/1", pipe()); err != nil {
		t.Fatal(err)
	}
	full := pipe()
	if err := h.hold("b/2", full); !errors.Is(err, errs.Exhausted) || sysfd.SetCloseOnExec(full[0], true) == nil {
		t.Errorf("beyond the limit: %v", err)
	}
	for _, key := range []string{"", "a:b", "a b", "a#0", "a/", strings.Repeat("k", maxKey+1)} {
		if err := h.hold(key, pipe()); !errors.Is(err, errs.Invalid) {
			t.Errorf("key %q: %v", key, err)
		}
	}
	h.release("b/")
	h.release("nothing")
	if !slices.Equal(h.fds.Keys(), []string{"a"}) || h.count != 2 {
		t.Errorf("keys %v, %d held", h.fds.Keys(), h.count)
	}
	h.release("a")
}

func duplicate(t *testing.T, f *os.File) int {
	t.Helper()
	ours, theirs, err := sysfd.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	peer, err := sysfd.FileUnixConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	if err := sysfd.SendFiles(ours, []byte{0}, []*os.File{f}); err != nil {
		t.Fatal(err)
	}
	_, fds, err := sysfd.ReceiveFDs(peer, make([]byte, 1))
	if err != nil {
		t.Fatal(err)
	}
	return fds[0]
}

func TestCommandLineIsReadBack(t *testing.T) {
	line := CommandLine("/s", "berth-x-supervisor", []string{"--log-format", "json"})
	o, err := ParseArgs(line[1:])
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"serve", "--state", "/s", "--exit-when-idle", "--log-format", "json"}
	if line[0] != "keep" || o.StateDir != "/s" || !o.ExitWhenIdle || o.Cgroup != "berth-x-supervisor" || !slices.Equal(o.Args, want) {
		t.Errorf("%q became %+v", line, o)
	}
	for _, bad := range [][]string{{}, {"--state"}, {"--state", "/s", "--nonsense"}} {
		if _, err := ParseArgs(bad); !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestLateTakeOverFindsNoLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), LockName)
	lock, _, err := sysfd.TryLock(path)
	if err != nil || lock == nil {
		t.Fatal(lock, err)
	}
	c := &Client{lost: make(chan struct{}), lock: lock, err: errors.New("keeper died")}
	close(c.lost)
	c.giveUp()
	if err := c.TakeOver(nil); !errors.Is(err, errs.State) || !strings.Contains(err.Error(), "no take-over within") {
		t.Errorf("late take-over: %v", err)
	}
	if _, err := lock.File().Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the lock is still held: %v", err)
	}
}
