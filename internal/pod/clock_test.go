package pod_test

import (
	"encoding/json"
	"math"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthrun/berth/internal/pod/podtest"
)

// A machine without a hardware clock boots in 1970, and its records have later times. (The clock of
// synctest starts in 2000, with the same effect.) Stops, events and removals do not depend on the
// difference.
func TestRecordsFromTheFuture(t *testing.T) {
	for name, at := range map[string]time.Time{
		"a hundred years ahead": time.Now().AddDate(100, 0, 0),
		"the end of time":       time.Unix(0, math.MaxInt64),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t, nil)
				sandbox := b.mustRun(b.SandboxConfig("web"))
				main, done := b.mustStart(sandbox, "main", b.Programs.Sleep), b.mustStart(sandbox, "done", b.Programs.Exit(3))
				synctest.Wait()
				time.Sleep(time.Second) // tombstones are written
				b.script.Kill()
				b.CloseDaemon(b.s)
				stamp := strconv.FormatInt(at.UnixNano(), 10)
				b.rewrite("sandboxes", sandbox, func(record, _ map[string]any) { record["createdAt"] = stampOf(stamp) })
				b.rewrite("containers", done, func(record, _ map[string]any) {
					record["createdAt"], record["startedAt"], record["finishedAt"] = stampOf(stamp), stampOf(stamp), stampOf(stamp)
				})
				b.rewrite("containers", main, func(record, _ map[string]any) {
					record["createdAt"], record["startedAt"] = stampOf(stamp), stampOf(stamp)
					record["stop"] = map[string]any{"by": at.Format(time.RFC3339Nano), "timeout": stampOf(strconv.FormatInt(int64(5*time.Second), 10)), "signalled": true}
				})
				b.script = podtest.NewScript(nil)
				b.s = b.Daemon(b.script)

				f := b.follow(map[string]string{sandbox: "web", main: "main", done: "done"})
				// The first timestamp is larger than those of the records. A Hub starts after the
				// newest of these.
				f.last = min(at.UnixNano(), math.MaxInt64-1<<60)
				began := time.Now()
				for b.status(main).GetState() != exited {
					if time.Since(began) > time.Minute {
						t.Fatalf("the container that was promised 5 s is %v", b.status(main).GetState())
					}
					time.Sleep(time.Second)
				}
				b.assertExit(done, 3, "Error")
				if status := b.status(main); status.GetFinishedAt() < status.GetStartedAt() {
					t.Errorf("it ended at %d, before it started at %d", status.GetFinishedAt(), status.GetStartedAt())
				}
				fresh := b.mustStart(sandbox, "fresh", b.Programs.Sleep)
				f.names[fresh] = "fresh"
				// Each timestamp is larger than the previous one, which next checks.
				for event := f.next(); event.GetContainerId() != fresh; event = f.next() {
					if event.CreatedAt <= 0 {
						t.Fatalf("an event of %d", event.CreatedAt)
					}
				}
				if err := b.s.StopContainer(t.Context(), fresh, 1); err != nil {
					t.Error(err)
				}
				if err := b.s.RemoveSandbox(t.Context(), sandbox); err != nil {
					t.Error(err)
				}
				b.clear()
			})
		})
	}
}

// stampOf returns a time as in the JSON of a record.
func stampOf(digits string) json.Number { return json.Number(digits) }
