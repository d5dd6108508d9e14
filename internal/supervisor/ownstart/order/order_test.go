package order

import (
	"reflect"
	"testing"

	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
)

// fill gives every field below v a value that is not zero, so that a field which Encode forgets
// differs.
func fill(v reflect.Value, n *int64) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.String:
		v.SetString("value " + string(rune('a'+*n%26)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(-*n)
	default:
		v.Set(reflect.ValueOf(uint64(*n)).Convert(v.Type()))
	}
}

// TestCreateArrivesWhole: a field that Encode or DecodeCreate forgets would be a part of the spec that
// the init ignores.
func TestCreateArrivesWhole(t *testing.T) {
	var want Create
	var n int64
	fill(reflect.ValueOf(&want).Elem(), &n)
	got, err := DecodeCreate(want.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, &want) {
		t.Errorf("decoded %+v\nfrom %+v", got, want)
	}
}

func TestDamagedOrderIsRefused(t *testing.T) {
	good := (&Create{Process: &finish.Process{}}).Encode()
	for cut := range good {
		if _, err := DecodeCreate(good[:cut]); err == nil {
			t.Errorf("the first %d bytes of %d are an order", cut, len(good))
		}
	}
	if _, err := DecodeCreate(append(good, 0)); err == nil {
		t.Error("an order with a byte more is one")
	}
}
