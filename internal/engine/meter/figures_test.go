package meter

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/sys/cgroup"
)

// TestNoStatIsLost: each field of a cgroup's figures has its value in the engine's field with the
// same name.
func TestNoStatIsLost(t *testing.T) {
	var stats cgroup.Stats
	var details cgroup.Details
	n := 0
	fill(reflect.ValueOf(&stats).Elem(), &n)
	fill(reflect.ValueOf(&details).Elem(), &n)
	for _, test := range []struct{ from, to any }{{stats, figuresOf(&stats)}, {details, detailsOf(&details)}} {
		want, got := fields(t, test.from), fields(t, test.to)
		for name := range got {
			if _, ok := want[name]; !ok {
				delete(got, name) // no cgroup counts this
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%T (-want +got):\n%s", test.from, diff)
		}
	}
}

// fill sets each number to a different value, and gives each slice and pointer an element.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(int64(*n), 0)))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), n)
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n))
	case reflect.String:
		v.SetString(string(rune('a' + *n%26)))
	default:
		panic("no value for a " + v.Kind().String())
	}
}

// fields returns the fields of a value by name.
func fields(t *testing.T, v any) map[string]any {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]any{}
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}
