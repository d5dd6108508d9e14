package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// TestRecording: what is recorded is passed on, and the picture has each line once, after those before it.
func TestRecording(t *testing.T) {
	file := filepath.Join(t.TempDir(), "try.cast")
	const printed = "\n\x1b[1m$ berth <ls>\x1b(B\x1b[m\none\ntwo\n$ berth rm\n"
	var out bytes.Buffer
	if err := record(strings.NewReader(printed), &out, file, "a try"); err != nil || out.String() != printed {
		t.Fatalf("%q, %v", out.String(), err)
	}
	cast, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	svg, err := play(cast)
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, want := range []string{"<title>a try</title>", `class="command">$ berth &lt;ls&gt;<`, ">one<", ">two<", `class="command">$ berth rm<`} {
		next := strings.Index(svg[at:], want)
		if next < 0 || strings.Count(svg, want) != 1 {
			t.Fatalf("%q is not once after what comes before it in\n%s", want, svg)
		}
		at += next
	}
}

// TestRecordingOfCutCharacters: a program's output may come in pieces that end in the middle of a character.
func TestRecordingOfCutCharacters(t *testing.T) {
	file := filepath.Join(t.TempDir(), "try.cast")
	const printed = "sa\u00fcber \u2192 \U0001f6a2\n\xff\n"
	var out bytes.Buffer
	if err := record(iotest.OneByteReader(strings.NewReader(printed)), &out, file, "a try"); err != nil || out.String() != printed {
		t.Fatalf("%q, %v", out.String(), err)
	}
	cast, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, events, _ := bytes.Cut(cast, []byte("\n"))
	frames, err := framesOf(events)
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, f := range frames {
		shown = append(shown, f.lines...)
	}
	if want := []string{"sa\u00fcber \u2192 \U0001f6a2", "\ufffd"}; !slices.Equal(shown, want) {
		t.Errorf("%q, want %q", shown, want)
	}
}

// TestRecordingIsOfTheDemo: the recording has the commands that the demo runs now. make recording makes it again.
func TestRecordingIsOfTheDemo(t *testing.T) {
	script, err := os.ReadFile("../../build/demo.sh")
	if err != nil {
		t.Fatal(err)
	}
	cast, err := os.ReadFile("../../docs/pictures/demo.cast")
	if err != nil {
		t.Fatal(err)
	}
	_, events, _ := bytes.Cut(cast, []byte("\n"))
	frames, err := framesOf(events)
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, f := range frames {
		for _, line := range f.lines {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				shown = append(shown, command)
			}
		}
	}
	steps := regexp.MustCompile(`(?m)^(?:step|show) (.*)$`).FindAllStringSubmatch(string(script), -1)
	if len(steps) != len(shown) {
		t.Fatalf("the demo has %d commands, the recording %d: %q", len(steps), len(shown), shown)
	}
	for i, step := range steps {
		// Quotes and the values of variables are not shown as they are written.
		fixed, _, _ := strings.Cut(strings.NewReplacer(`"$berth"`, "berth", `"`, "", `'`, "").Replace(step[1]), "$")
		if !strings.HasPrefix(strings.ReplaceAll(shown[i], `"`, ""), fixed) {
			t.Errorf("the recording has %q, the demo %q", shown[i], step[1])
		}
	}
}
