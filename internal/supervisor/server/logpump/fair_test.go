package logpump

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/crilog"
)

// neighbour is another container on the loop of b. With samePod it has the same log directory.
func (b *bench) neighbour(samePod bool) *bench {
	other := newBench(b.t)
	other.loop = b.loop
	if samePod {
		other.cfg.LogDir = b.cfg.LogDir
		other.cfg.LogPath = filepath.Base(other.cfg.Dir) + ".log"
	}
	return other
}

// TestFloodStarvesNobody: while one container writes as fast as it can, each of 20 others writes its
// next line when its last one is in the log. All of them get to their end, in order, and the flood
// loses nothing.
func TestFloodStarvesNobody(t *testing.T) {
	for name, samePod := range map[string]bool{"in the same pod": true, "in other pods": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			flooding := b.open()
			stop := b.flood(b.stdout)
			waitFor(t, func() bool { return flooding.Stats().Written > 1<<20 })
			const containers, lines = 20, 25
			var quiet sync.WaitGroup
			for range containers {
				other := b.neighbour(samePod)
				p := other.open()
				quiet.Go(func() {
					var want []string
					for i := range lines {
						line := fmt.Sprintf("quiet line %d", i)
						if _, err := other.stdout.WriteString(line + "\n"); err != nil {
							t.Error(err)
							return
						}
						want = append(want, "stdout F "+line)
						if !other.arrived(p, int64(i+1)) {
							t.Errorf("line %d of a quiet container did not arrive", i)
							return
						}
					}
					if got := other.lines(other.cfg.LogPath); fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("a quiet container's log is %q", got)
					}
				})
			}
			quiet.Wait()
			wrote := stop()
			b.drain(flooding)
			b.expectFlood(b.cfg.LogPath, wrote)
		})
	}
}

// arrived waits until the pump has written so many lines.
func (b *bench) arrived(p *Pump, lines int64) bool {
	ctx := b.ctx()
	for p.Stats().Lines < lines {
		if ctx.Err() != nil {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// expectFlood compares a log with so many lines of flood.
func (b *bench) expectFlood(name string, lines int64) {
	b.t.Helper()
	f, err := os.Open(b.path(name))
	must(b.t, err)
	defer f.Close()
	r := crilog.NewReader(f)
	for i := range lines {
		line, err := r.Next()
		if err != nil || string(line.Text)+"\n" != floodLine || line.Partial {
			b.t.Fatalf("line %d of %d of the flood is %.60q, %v", i, lines, line.Text, err)
		}
	}
	if line, err := r.Next(); err == nil {
		b.t.Errorf("behind the flood: %.60q", line.Text)
	}
}

// TestManyFloodsShareTheBuffers: when more containers write as fast as they can than there are large
// buffers and rings, all of them continue, none loses anything, and the buffers in use stay bounded.
func TestManyFloodsShareTheBuffers(t *testing.T) {
	b := newBench(t)
	const containers, blocks = 2 * largeSlots, 16
	block := strings.Repeat(floodLine, 64<<10/len(floodLine))
	var pumps []*Pump
	var floods []*bench
	var writing sync.WaitGroup
	for range containers {
		other := b.neighbour(false)
		floods, pumps = append(floods, other), append(pumps, other.open())
		writing.Go(func() {
			for range blocks {
				if _, err := other.stdout.WriteString(block); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wrote := make(chan struct{})
	go func() {
		writing.Wait()
		close(wrote)
	}()
	waitFor(t, func() bool {
		if n := len(b.loop.largeSlots); n > largeSlots {
			t.Fatalf("%d large buffers are in use, want at most %d", n, largeSlots)
		}
		select {
		case <-wrote:
			return true
		default:
			return false
		}
	})
	for i, other := range floods {
		other.drain(pumps[i])
		other.expectFlood("0.log", int64(blocks*len(block)/len(floodLine)))
	}
	waitFor(t, func() bool {
		return len(b.loop.largeSlots)+len(b.loop.smallSlots)+len(b.loop.ringSlots) == 0
	})
}

// TestHungDiskKeepsNoBuffer: the containers of pods whose disks hang wait without buffers, but for
// those within the gate, and these do not count: more pods than there are buffers hang, and the others
// continue.
func TestHungDiskKeepsNoBuffer(t *testing.T) {
	b := newBench(t)
	release := make(chan struct{})
	resume := sync.OnceFunc(func() { close(release) })
	defer resume()
	const hungPods = smallSlots / gateWidth
	var all []*bench
	var pumps []*Pump
	for range hungPods {
		pod := b.neighbour(false)
		b.sicken(pod.cfg.LogDir, func(f logFile, p []byte, off int64) (int, error) {
			<-release
			return f.WriteAt(p, off)
		})
		for range gateWidth + 1 {
			other := b.neighbour(false)
			other.cfg.LogDir, other.cfg.LogPath = pod.cfg.LogDir, filepath.Base(other.cfg.Dir)+".log"
			all, pumps = append(all, other), append(pumps, other.open())
		}
	}
	for _, other := range all {
		other.write(other.stdout, "sooner or later\n")
	}
	p := b.open()
	b.write(b.stdout, "in time\n")
	b.drain(p)
	b.expect("0.log", "stdout F in time")
	resume()
	for i, other := range all {
		other.drain(pumps[i])
		other.expect(other.cfg.LogPath, "stdout F sooner or later")
	}
}
