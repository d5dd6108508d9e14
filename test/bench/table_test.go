package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// measured is a result with berth, a Docker column and containerd, whose pods take the given times.
func measured(berth, containerd time.Duration) *result {
	r := &result{Host: "host", Peers: []peerInfo{{Name: "berth", Beside: "berth"}, {Name: "docker", Beside: "berth"}, {Name: "containerd", Beside: "berth"}}}
	one := &table{Title: "One pod"}
	many := &table{Title: "With 10 pods", Pods: 10}
	more := &table{Title: "With 100 pods", Pods: 100}
	for peer, took := range map[string]time.Duration{"berth": berth, "containerd": containerd, floorName: time.Millisecond} {
		for range 5 {
			one.sample(peer, "pod up", took)
			one.sample(peer, "RunPodSandbox", took/2)
		}
		one.rate(peer, "pods up", "1/s", 1000/milli(took))
		for _, t := range []*table{many, more} {
			t.mean(peer, "PSS with all", "MiB", milli(took))
		}
	}
	r.Sections = []*table{one, many, more}
	return r
}

func TestRatios(t *testing.T) {
	got := measured(10*time.Millisecond, 45*time.Millisecond).ratios()
	for name, want := range map[string]float64{
		"One pod: pod up p50: containerd/berth":            4.5,
		"One pod: pods up: containerd/berth":               4.5,
		"One pod: pod up p50: berth/floor":                 10,
		"With 100 pods: PSS with all: containerd/berth":    4.5,
		"One pod: pod up p50: docker/berth (not measured)": 0,
	} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v; all: %v", name, got[name], want, got)
		}
	}
}

func TestCheckReportsWhatHasBecomeWorse(t *testing.T) {
	dir := t.TempDir()
	committed := filepath.Join(dir, "ratios.json")
	data, err := json.Marshal(measured(10*time.Millisecond, 45*time.Millisecond).ratios())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(committed, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		berth time.Duration
		want  []string
	}{
		{10 * time.Millisecond, nil},
		{12 * time.Millisecond, nil}, // noise
		{5 * time.Millisecond, nil},  // faster
		{20 * time.Millisecond, []string{"pod up p50: containerd/berth", "pod up p50: berth/floor", "pods up: containerd/berth"}},
	} {
		file := filepath.Join(dir, "result.json")
		if err := measured(c.berth, 45*time.Millisecond).write(file); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err := check(&out, file, committed)
		if (err != nil) != (c.want != nil) {
			t.Errorf("%v: %v\n%s", c.berth, err, &out)
		}
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%v: no line about %q:\n%s", c.berth, want, &out)
			}
		}
	}
}

func TestCheckComparesSomething(t *testing.T) {
	dir := t.TempDir()
	file, committed := filepath.Join(dir, "result.json"), filepath.Join(dir, "ratios.json")
	if err := measured(time.Millisecond, time.Millisecond).write(file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(committed, []byte(`{"Other: pod up p50: containerd/berth": 4}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := check(&bytes.Buffer{}, file, committed); err == nil {
		t.Error("a run that has no ratio in common passes")
	}
}

func TestTableShowsWhatIsMissing(t *testing.T) {
	r := measured(10*time.Millisecond, 45*time.Millisecond)
	var out bytes.Buffer
	r.Sections[0].print(&out, r.Peers)
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "pod up p50") {
			continue
		}
		want := []string{"pod", "up", "p50", "ms", "1.00", "10.00", "-", "45.00", "10.0x", "-", "4.5x"}
		if got := strings.Fields(line); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("the line is %v, want %v", got, want)
		}
		return
	}
	t.Errorf("no line of pod up:\n%s", &out)
}

func TestPageHasPlotsAndNeedsNoOtherFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.html")
	if err := page(measured(10*time.Millisecond, 45*time.Millisecond), file); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, want := range []string{"Pod up, by call", "Medians and spread", "Over the number of pods", "<polyline", "containerd/berth"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, unwanted := range []string{"src=", "href=", "url(", "NaN", "Inf", "ZgotmplZ"} {
		if strings.Contains(text, unwanted) {
			t.Errorf("the page has %q", unwanted)
		}
	}
}

// TestCurveOfNegativeValues: a curve stays within its plot, whose line of zero moves up.
func TestCurveOfNegativeValues(t *testing.T) {
	r := &result{Peers: []peerInfo{{Name: "berth", Beside: "berth"}, {Name: "containerd", Beside: "berth"}}}
	for i, values := range []map[string]float64{{"berth": -1, "containerd": 3}, {"berth": 0, "containerd": 2}} {
		section := &table{Title: "With pods", Pods: 10 * (i + 1)}
		for peer, value := range values {
			section.mean(peer, "PSS per pod", "MiB", value)
		}
		r.Sections = append(r.Sections, section)
	}
	c := curves(r)[0]
	if c.Min != "-1.0" || c.Max != "3.0 MiB" || c.Zero != plotHeight*3/4 {
		t.Errorf("it reaches from %s to %s, with 0 at %v", c.Min, c.Max, c.Zero)
	}
	for _, line := range c.Lines {
		for _, dot := range line.Dots {
			if dot.Y < 0 || dot.Y > plotHeight {
				t.Errorf("%s is at %v", dot.Text, dot.Y)
			}
		}
	}
}

// TestSectionWithPeersOfItsOwn: its table and its ratios have no other columns.
func TestSectionWithPeersOfItsOwn(t *testing.T) {
	r := measured(10*time.Millisecond, 45*time.Millisecond)
	own := &table{Title: "Network", Peers: []peerInfo{{Name: "in-process"}, {Name: "programs", Beside: "in-process"}}}
	own.sample("in-process", "network", 2*time.Millisecond)
	own.sample("programs", "network", 30*time.Millisecond)
	r.Sections = append(r.Sections, own)
	var out bytes.Buffer
	own.print(&out, r.Peers)
	if line := strings.Split(out.String(), "\n")[3]; strings.Join(strings.Fields(line), " ") != "network p50 ms - 2.00 30.00 15.0x" {
		t.Errorf("the line is %q", line)
	}
	if got := r.ratios()["Network: network p50: programs/in-process"]; got != 15 {
		t.Errorf("the ratio is %v, want 15", got)
	}
	if got := r.ratios()["One pod: pod up p50: containerd/berth"]; got != 4.5 {
		t.Errorf("the ratio of the run's own peers is %v, want 4.5", got)
	}
}
