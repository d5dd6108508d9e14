//go:build integration

package integration

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
)

// pullEvent is an event of a pull as `berth events -o json` prints it.
type pullEvent struct {
	Pull struct {
		Type, Image, ID, Error string
		FetchedBytes, Duration int64
	}
}

// TestEventsOfPulls: `berth events` shows the beginning and the end of a pull, once each.
func TestEventsOfPulls(t *testing.T) {
	for _, c := range []struct{ end, want string }{{"it is pulled", "pulled"}, {"it is cancelled", "pull-failed"}} {
		t.Run(c.end, func(t *testing.T) {
			b := harness.Start(t, harness.Options{})
			h := holdLastLayer(t, b)
			pulled := make(chan error, 1)
			go func() {
				_, err := h.pull(b, nil)
				pulled <- err
			}()
			select {
			case <-h.asked:
			case err := <-pulled:
				t.Fatalf("the pull ends before it asks for the last layer: %v", err)
			}
			cmd := exec.CommandContext(b.Ctx(), filepath.Join(b.Bin, "berth"), "events", "--endpoint", "unix://"+b.Socket,
				"--type", "pulling,pulled,pull-failed", "--count", "2", "-o", "json")
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			events := json.NewDecoder(bufio.NewReader(out))
			var begun, ended pullEvent
			if err := events.Decode(&begun); err != nil || begun.Pull.Type != "pulling" || begun.Pull.Image != h.ref {
				t.Fatalf("the beginning is %+v, %v", begun, err)
			}
			if c.want == "pulled" {
				close(h.let)
			} else {
				b.MustCLI("jobs", "cancel", begun.Pull.ID)
			}
			if err := events.Decode(&ended); err != nil || ended.Pull.Type != c.want || ended.Pull.ID != begun.Pull.ID {
				t.Fatalf("the end is %+v, %v", ended, err)
			}
			if err := cmd.Wait(); err != nil { // after two events
				t.Error(err)
			}
			failed := (<-pulled) != nil
			if failed != (c.want != "pulled") || failed != strings.Contains(ended.Pull.Error, "an operator has cancelled the job") {
				t.Errorf("the pull has failed: %v; the event says %q", failed, ended.Pull.Error)
			}
			var size int64
			for _, layer := range h.img.Layers {
				size += layer.Size
			}
			if got := ended.Pull.FetchedBytes; got != size && c.want == "pulled" || got <= 0 || ended.Pull.Duration <= 0 {
				t.Errorf("%d bytes in %d ns, the layers have %d", got, ended.Pull.Duration, size)
			}
		})
	}
}
