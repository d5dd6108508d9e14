package journal

import (
	"testing"
	"time"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

// FuzzOpen: for any journal file, valid lines are read, invalid lines are counted, queries are
// answered, and new entries can be written.
func FuzzOpen(f *testing.F) {
	const entry = `{"apply":1,"begin":{"verb":"apply","version":"1","made":["/var/lib/berth-node"]}}` + "\n"
	const prior = `{"object":{"kind":"file","id":"/a"},"state":{"exists":true}}`
	f.Add([]byte(entry + `{"apply":1,"touch":{"task":"t","before":[` + prior + `]},"own":[` + prior + `]}` + "\n" +
		`{"apply":1,"done":{"task":"t","after":[` + prior + `]}}` + "\n" + `{"apply":1,"end":{"result":"ok"}}` + "\n"))
	f.Add([]byte(`{"apply":-1,"touch":{"before":[` + prior + `]},"own":[` + prior + `],"leave":[` + prior + `],"restarted":["x"]}` + "\n"))
	f.Add([]byte(`{"base":{"owned":[` + prior + `],"pending":["u"]}}` + "\n" + entry + `{"apply":1,"end":`))
	f.Add([]byte("null\n[]\n\x00\n" + `{"apply":9223372036854775807,"begin":{}}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		host := provisiontest.New()
		files := host.Files()
		if err := files.Mkdir("/j", provision.Attr{Mode: 0o700}); err != nil {
			t.Fatal(err)
		}
		if err := files.Append("/j/journal", data, provision.Attr{Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		j, err := Open(files, "/j", time.Now)
		if err != nil {
			t.Fatalf("the journal cannot be opened: %v", err)
		}
		for _, o := range j.Owned() {
			if _, ok := j.Owns(o.Object); !ok {
				t.Errorf("%v is ours and is not", o.Object)
			}
		}
		for _, e := range j.History() {
			j.Touched(e.Number)
			priors, _, _ := j.Since(e.Number - 1)
			j.At(e.Number, priors)
		}
		j.Pending()
		last, _ := j.Last()
		n, err := j.Begin(Begin{Verb: Apply}, []byte("wish"))
		if err != nil {
			t.Fatalf("nothing can be written on: %v", err)
		}
		if n == last.Number {
			t.Errorf("two entries have the number %d", n)
		}
		again, err := Open(files, "/j", time.Now)
		if err != nil || again.Bad() > j.Bad()+1 {
			t.Errorf("after a write: %v, %d bad lines, there were %d", err, again.Bad(), j.Bad())
		}
	})
}
