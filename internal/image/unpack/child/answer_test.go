package child

import (
	"bytes"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// TestAnswers: the daemon reads what a child writes.
func TestAnswers(t *testing.T) {
	result := Result{DiffID: "sha256:0", Size: 7, Opaque: Names{"a", `b"c,[`, "no UTF-8: \xff"}, Unsure: make(Names, maxUnsure)}
	for name, c := range map[string]struct {
		result Result
		err    error
		want   Answer
	}{
		"result":          {result, nil, Answer{Result: result, Kind: -1}},
		"error":           {Result{}, errors.New("why"), Answer{Error: "why", Kind: -1}},
		"names too large": {Result{Opaque: Names{strings.Repeat("x", MaxAnswer)}}, nil, Answer{Error: "the names of the layer's deletions have more than 4194304 bytes together: " + errs.Invalid.Error()}},
	} {
		var out bytes.Buffer
		if err := write(&out, c.result, c.err); err != nil {
			t.Fatal(err)
		}
		got, err := ReadAnswer(out.Bytes())
		if name == "names too large" {
			c.want.Kind = got.Kind
			if !errors.Is(errs.Kinds()[got.Kind], errs.Invalid) {
				t.Errorf("%s: kind %d", name, got.Kind)
			}
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

// TestHostileAnswers: an answer that no child writes is refused, and takes little memory to refuse or to read.
func TestHostileAnswers(t *testing.T) {
	list := func(name, item string, n int) string {
		return `"` + name + `":[` + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + `]`
	}
	for name, c := range map[string]struct {
		answer string
		valid  bool
	}{
		"as many opaque as may be":  {"{" + list("opaque", `""`, maxOpaque) + "}", true},
		"too many opaque":           {"{" + list("opaque", `""`, MaxAnswer/3-10) + "}", false},
		"too many unsure":           {"{" + list("unsure", `""`, maxUnsure+1) + "}", false},
		"numbers":                   {"{" + list("opaque", `1`, MaxAnswer/2-10) + "}", false},
		"one list after the other":  {"{" + list("opaque", `""`, 8) + "," + list("Opaque", `""`, 8) + "}", false},
		"an object":                 {`{"opaque":{"a":1}}`, false},
		"too long":                  {`{"diffID":"` + strings.Repeat("x", MaxAnswer) + `"}`, false},
		"cut":                       {`{"diffID":"`, false},
		"long name":                 {`{"opaque":["` + strings.Repeat("AAAA", MaxAnswer/4-25) + `"]}`, true},
		"a name that is not base64": {`{"opaque":["a/b"]}`, false},
		"a long error":              {`{"error":"` + strings.Repeat("x", MaxAnswer-100) + `"}`, true},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		answer, err := ReadAnswer([]byte(c.answer))
		runtime.ReadMemStats(&after)
		if (err == nil) != c.valid {
			t.Errorf("%s: %v", name, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 32<<20 {
			t.Errorf("%s: reading it took %d bytes", name, used)
		}
		if len(answer.Error) > 1<<10 {
			t.Errorf("%s: the error has %d bytes", name, len(answer.Error))
		}
	}
}
