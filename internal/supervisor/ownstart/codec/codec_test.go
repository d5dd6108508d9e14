package codec

import (
	"math"
	"slices"
	"testing"
)

func TestReaderReturnsWhatWasWritten(t *testing.T) {
	var w Writer
	for _, v := range []uint64{0, 1, math.MaxUint64} {
		w.Uint(v)
	}
	for _, v := range []int{0, -1, math.MinInt, math.MaxInt} {
		w.Int(v)
	}
	w.Bool(true)
	w.Bool(false)
	w.Bytes([]byte{1, 0, 2})
	w.String("a\x00b")
	w.Strings([]string{"", "x"})
	w.Strings(nil)
	r := NewReader(w.Encoded())
	for _, v := range []uint64{0, 1, math.MaxUint64} {
		if got := r.Uint(); got != v {
			t.Errorf("%d became %d", v, got)
		}
	}
	for _, v := range []int{0, -1, math.MinInt, math.MaxInt} {
		if got := r.Int(); got != v {
			t.Errorf("%d became %d", v, got)
		}
	}
	if !r.Bool() || r.Bool() {
		t.Error("the truth values have changed")
	}
	if b, s := r.Bytes(), r.String(); string(b) != "\x01\x00\x02" || s != "a\x00b" {
		t.Errorf("bytes %q and string %q", b, s)
	}
	if full, empty := r.Strings(), r.Strings(); !slices.Equal(full, []string{"", "x"}) || empty != nil {
		t.Errorf("lists %q and %q", full, empty)
	}
	if err := r.Err(); err != nil {
		t.Error(err)
	}
}

func TestReaderRefusesWhatIsLeft(t *testing.T) {
	r := NewReader([]byte{1, 1})
	if r.Uint(); r.Err() == nil {
		t.Error("a byte is left, and there is no error")
	}
}

// FuzzReader: damaged bytes make neither a panic nor a large allocation.
func FuzzReader(f *testing.F) {
	var w Writer
	w.Strings([]string{"one", "two"})
	w.Bytes([]byte("three"))
	f.Add(w.Encoded())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(b)
		total := len(r.Strings()) + len(r.Bytes())
		if total > len(b) {
			t.Errorf("%d bytes hold %d elements", len(b), total)
		}
		if r.Int(); r.Err() != nil && (r.String() != "" || r.Uint() != 0 || r.Bool()) {
			t.Error("a value after damaged bytes")
		}
	})
}
