package hoststoml

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
)

func texts(faults []Fault) []string {
	var all []string
	for _, f := range faults {
		all = append(all, f.At("f"))
	}
	return all
}

func TestDescribe(t *testing.T) {
	d := Describe([]byte(`server = "https://r.example"
Skip_Verify = true
mirrors = ["x"]

[host."http://u:secret@m.example/x"]
  capabilities = ["Pull", "referrers"]
  ca = ["a.crt", "/b.crt"]
  client = [["c.cert", "c.key"], "d.pem"]
  server = "https://other.example"
  [host."http://u:secret@m.example/x".header]
    Authorization = "Basic secret"

[host."n.example:5000"]

[host]
"https://inline.example" = {}
`))
	if faults := d.AllFaults(); len(faults) > 0 {
		t.Errorf("faults %+v", faults)
	}
	want := []string{
		"f:3: mirrors: is not a key of hosts.toml, and has no effect",
		"f:9: server: is not a key of hosts.toml, and has no effect",
		`f:16: host."https://inline.example": is ignored; want a table with the heading [host."https://inline.example"]`,
	}
	if got := texts(d.AllWarnings()); !slices.Equal(got, want) {
		t.Errorf("warnings\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(d.Endpoints) != 3 {
		t.Fatalf("endpoints %+v", d.Endpoints)
	}
	first, second, last := d.Endpoints[0], d.Endpoints[1], d.Endpoints[2]
	if first.Shown() != "http://m.example/x" || first.Scheme != "http" || first.Host != "m.example" || first.Line != 5 || !slices.Equal(first.Capabilities, []string{"pull", "referrers"}) ||
		!slices.Equal(first.CA, []string{"a.crt", "/b.crt"}) || !slices.Equal(first.Client, [][2]string{{"c.cert", "c.key"}, {"d.pem"}}) || !slices.Equal(first.Header, []string{"Authorization"}) {
		t.Errorf("the first mirror is %+v", first)
	}
	if second.Scheme != "https" || second.Host != "n.example:5000" || second.Line != 13 || second.SkipVerify {
		t.Errorf("the second mirror is %+v", second)
	}
	if last.Host != "r.example" || last.Line != 1 || !last.SkipVerify {
		t.Errorf("the registry is %+v", last)
	}
	d.CheckFiles("/dir", func(path string) ([]byte, error) {
		if path == "/b.crt" {
			return nil, nil
		}
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	})
	want = []string{
		"f:7: ca: names /dir/a.crt, which is not there", "f:7: ca: names /b.crt, which has no certificate in PEM",
		"f:8: client: names /dir/c.cert, which is not there", "f:8: client: names /dir/c.key, which is not there", "f:8: client: names /dir/d.pem, which is not there",
	}
	if got := texts(d.AllFaults()); !slices.Equal(got, want) {
		t.Errorf("faults\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestDescribeShowsNoSecret: what is wrong may be a secret.
func TestDescribeShowsNoSecret(t *testing.T) {
	d := Describe([]byte("server = \"http://u:secret@\"\n[host.\"ftp://u:x/secret@m.example\"]\n[host.\"https://x\".header]\nAuthorization = [\"secret\", 1]\n"))
	text := strings.Join(append(texts(d.AllFaults()), texts(d.AllWarnings())...), "\n")
	if strings.Contains(text, "secret") || len(d.AllFaults()) != 3 || len(d.AllWarnings()) != 0 {
		t.Errorf("described as\n%s", text)
	}
}

// TestDescribeKeysWithEscapes: the lines of such keys are found, too.
func TestDescribeKeysWithEscapes(t *testing.T) {
	d := Describe([]byte("\"ser\\u0076er\" = \"https://r.example\"\n[host.\"https://x\".header]\n\"X-\\u0041uth\" = \"v\"\n"))
	if len(d.AllFaults())+len(d.AllWarnings()) != 0 || len(d.Endpoints) != 2 || d.Endpoints[1].Line != 1 || d.Endpoints[1].Host != "r.example" || !slices.Equal(d.Endpoints[0].Header, []string{"X-Auth"}) {
		t.Errorf("described as %+v", d)
	}
}

// TestDescribeKeysWithoutServer: what has no effect is a warning.
func TestDescribeKeysWithoutServer(t *testing.T) {
	d := Describe([]byte("capabilities = [\"push\"]\noverride_path = true\n"))
	want := []string{"f:1: capabilities: has no effect on the registry itself without the key server", "f:2: override_path: has no effect on the registry itself without the key server"}
	if got := texts(d.AllWarnings()); !slices.Equal(got, want) || len(d.AllFaults()) != 0 {
		t.Errorf("warnings %q, faults %q", got, texts(d.AllFaults()))
	}
}
