package order

import (
	"reflect"
	"testing"

	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
)

// TestExecArrivesWhole: a field that Encode or DecodeExec forgets would be ignored.
func TestExecArrivesWhole(t *testing.T) {
	var want Exec
	var n int64
	fill(reflect.ValueOf(&want).Elem(), &n)
	got, err := DecodeExec(want.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, &want) {
		t.Errorf("decoded %+v\nfrom %+v", got, want)
	}
	// Each field with a comment about descriptors is renumbered.
	if len(want.Descriptors()) != 4+len(want.Tasks)+len(want.Spaces) {
		t.Errorf("%d descriptors", len(want.Descriptors()))
	}
}

func TestDamagedExecIsRefused(t *testing.T) {
	good := (&Exec{Process: &finish.Process{}}).Encode()
	for cut := range good {
		if _, err := DecodeExec(good[:cut]); err == nil {
			t.Errorf("the first %d bytes of %d are an order", cut, len(good))
		}
	}
	if _, err := DecodeExec(append(good, 0)); err == nil {
		t.Error("an order with a byte more is one")
	}
}
