package logs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/crilog"
)

// The promise of the package: each line once and in order, over kills at any point of a write,
// streams that break, engines that filter by time or drop the end, rotations, and lost records.
func TestRandomKills(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for range rounds {
		seed := rand.Uint64()
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { randomKills(t, seed) }) {
			return
		}
	}
}

func randomKills(t *testing.T, seed uint64) {
	r := &randomRun{bench: newBench(t), Rand: rand.New(rand.NewPCG(seed, 0)), now: [2]int64{at(1), at(1)}}
	r.maxLine = []int{1, 5, 16, 100, crilog.DefaultMaxText}[r.IntN(5)]
	r.engine.filters, r.engine.dropsEnd, r.engine.tty = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(4) == 0
	r.said = &bytes.Buffer{}
	for range 1 + r.IntN(8) {
		r.print()
		r.life()
	}
	r.write = writeFile
	r.engine.cut = 0
	r.start()
	r.drain()
	r.m.Close()
	r.check()
}

// randomRun is a container, and the processes that follow it one after the other.
type randomRun struct {
	*bench
	*rand.Rand
	now [crilog.Streams]int64
	// open is the time of an unfinished line, 0 when there is none.
	open      [crilog.Streams]int64
	rotations int
}

// print makes the container write.
func (r *randomRun) print() {
	for range r.IntN(30) {
		s := crilog.Stream(r.IntN(2))
		if r.engine.tty {
			s = crilog.Stdout
		}
		// Times of one stream increase. Those of both are up to a second apart, but for
		// lines that began long ago.
		when := r.open[s]
		if when == 0 {
			r.now[s] = max(r.now[s], max(r.now[0], r.now[1])-1e9) + 1 + r.Int64N(1e9)
			when = r.now[s]
		}
		text := strings.Repeat(string(rune('a'+r.IntN(3))), r.IntN(12))
		if r.IntN(3) > 0 || text == "" {
			text += "\n"
			r.open[s] = 0
		} else {
			r.open[s] = when
		}
		r.engine.print(s, when, text)
	}
}

// life is the life of one process, up to a kill.
func (r *randomRun) life() {
	writes := r.IntN(4)
	dead := make(chan struct{}, 1)
	// The part of the last write that reaches the file.
	part := r.Float64()
	killed := false
	r.write = func(f *logFile, p []byte, offset int64) error {
		if writes--; writes >= 0 && !killed {
			return writeFile(f, p, offset)
		}
		defer signal(dead)
		if killed {
			return errSick
		}
		killed = true
		return errors.Join(errSick, writeFile(f, p[:int(part*float64(len(p)+1))], offset))
	}
	if r.IntN(3) == 0 {
		r.engine.cut = 1 + r.IntN(500)
	}
	r.start()
	r.print()
	if r.IntN(3) == 0 {
		r.rotate()
	}
	r.print()
	if r.IntN(2) == 0 {
		r.untilWrittenOr(dead)
	}
	r.m.Close()
	// The package says what a lost record means with an engine that filters.
	if r.IntN(10) == 0 && !r.engine.filters {
		r.loseRecord()
	}
}

// untilWrittenOr waits until all whole lines are in the log, or the process is dead.
func (r *randomRun) untilWrittenOr(dead chan struct{}) {
	f, err := r.m.find(r.c.ID)
	if err != nil {
		r.Fatal(err)
	}
	r.until(func() bool {
		select {
		case <-dead:
			return true
		default:
		}
		f.outlet.mu.Lock()
		defer f.outlet.mu.Unlock()
		return len(f.outlet.batch) == 0 && !f.outlet.working
	})
}

// rotate does what a kubelet does, or a part of it.
func (r *randomRun) rotate() {
	old := fmt.Sprintf("%s.20260101-%06d", r.c.Path, r.rotations)
	if err := os.Rename(r.c.Path, old); err != nil {
		return // no log yet
	}
	r.rotations++
	switch r.IntN(3) {
	case 0: // the process is killed before it gets the request
	case 1: // the answer does not arrive
		_ = r.m.Reopen(r.context(), r.c.ID)
	default:
		if err := r.m.Reopen(r.context(), r.c.ID); err != nil {
			if _, err := os.Stat(r.c.Path); errors.Is(err, os.ErrNotExist) {
				if err := os.Rename(old, r.c.Path); err != nil {
					r.Fatal(err)
				}
			}
		}
	}
}

// loseRecord is a loss of power, from which the whole log was saved. A log that is renamed at
// that moment is renamed back.
func (r *randomRun) loseRecord() {
	if err := os.Remove(recordPath(r.c.Dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		r.Fatal(err)
	}
}

// check compares the log with what the engine has.
func (r *randomRun) check() {
	r.Helper()
	files, err := filepath.Glob(r.c.Path + "*")
	if err != nil {
		r.Fatal(err)
	}
	slices.SortFunc(files, func(a, b string) int { // the rotated ones first
		return strings.Compare(strings.TrimPrefix(a, r.c.Path)+"~", strings.TrimPrefix(b, r.c.Path)+"~")
	})
	type text struct{ Out, Err string }
	var want, got text
	for _, m := range r.engine.logged {
		if m.stream == crilog.Stdout {
			want.Out += fmt.Sprintf("%d:%s", m.at, m.raw)
		} else {
			want.Err += fmt.Sprintf("%d:%s", m.at, m.raw)
		}
	}
	var last [crilog.Streams]int64
	for _, file := range files {
		_ = linesOf(r.TB, file) // whole lines only
		raw, err := os.ReadFile(file)
		if err != nil {
			r.Fatal(err)
		}
		for line := range bytes.Lines(raw) {
			parsed, err := crilog.Parse(line)
			if err != nil {
				r.Fatal(err)
			}
			to := &got.Out
			if parsed.Stream == crilog.Stderr {
				to = &got.Err
			}
			if parsed.Time.UnixNano() < last[parsed.Stream] {
				r.Errorf("%s is out of order", line)
			}
			last[parsed.Stream] = parsed.Time.UnixNano()
			*to += fmt.Sprintf("%d:%s", parsed.Time.UnixNano(), parsed.Text)
			if !parsed.Partial {
				*to += "\n"
			}
		}
	}
	if diff := cmp.Diff(joinTimes(want.Out), joinTimes(got.Out)); diff != "" {
		r.Errorf("stdout (-engine +log)\n%s\n%s", diff, r.said)
	}
	if diff := cmp.Diff(joinTimes(want.Err), joinTimes(got.Err)); diff != "" {
		r.Errorf("stderr (-engine +log)\n%s\n%s", diff, r.said)
	}
}

// joinTimes gives each line the times of its parts, once.
func joinTimes(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		at, _, _ := strings.Cut(line, ":")
		lines = append(lines, at+":"+strings.ReplaceAll(line, at+":", ""))
	}
	return lines
}
