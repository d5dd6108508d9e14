package hoststoml

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"
)

func TestText(t *testing.T) {
	for name, c := range map[string]struct {
		file File
		want string
	}{
		"nothing":  {File{}, ""},
		"registry": {File{Registry: Server{URL: "https://r.example", SkipVerify: true}}, "server = \"https://r.example\"\nskip_verify = true\n"},
		"all": {
			File{
				Registry: Server{URL: "https://r.example", CA: []string{"/a", "/b"}, ClientCert: "/both.pem", Authorization: "Bearer x"},
				Mirrors: []Mirror{
					{Server: Server{URL: "https://z.example/hub", ClientCert: "/c", ClientKey: "/k", Authorization: "Basic y"}, Capabilities: []string{"pull"}, OverridePath: true},
					{Server: Server{URL: "http://a.example"}, Capabilities: []string{"pull", "resolve"}},
				},
			},
			`server = "https://r.example"
ca = ["/a", "/b"]
client = "/both.pem"

[header]
Authorization = "Bearer x"

[host."https://z.example/hub"]
capabilities = ["pull"]
override_path = true
client = [["/c", "/k"]]

[host."https://z.example/hub".header]
Authorization = "Basic y"

[host."http://a.example"]
capabilities = ["pull", "resolve"]
`,
		},
		"mirrors of all registries": {
			File{Mirrors: []Mirror{{Server: Server{URL: "https://m.example"}, Capabilities: []string{"pull"}}}},
			"[host.\"https://m.example\"]\ncapabilities = [\"pull\"]\n",
		},
	} {
		if diff := cmp.Diff(c.want, c.file.Text()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// FuzzText: a TOML reader gets exactly the description back.
func FuzzText(f *testing.F) {
	f.Add("https://m.example", "/etc/ca.pem", "Basic eA==")
	f.Add("a\"]\nskip_verify = true\n[x.\"", "\\", "\x7f\x00\t")
	f.Add("\u00e4\u2028", "", "'")
	f.Fuzz(func(t *testing.T, url, ca, header string) {
		text := File{
			Registry: Server{URL: "https://r.example", CA: []string{ca}, Authorization: header},
			Mirrors:  []Mirror{{Server: Server{URL: url, ClientCert: ca, Authorization: header}, Capabilities: []string{"pull"}}},
		}.Text()
		var got map[string]any
		if err := toml.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		url, ca, header = runes(url), runes(ca), runes(header)
		mirror := map[string]any{"capabilities": []any{"pull"}, "client": ca}
		want := map[string]any{
			"server": "https://r.example", "ca": []any{ca}, "host": map[string]any{url: mirror},
		}
		if header != "" {
			want["header"] = map[string]any{"Authorization": header}
			mirror["header"] = map[string]any{"Authorization": header}
		}
		if ca == "" {
			delete(mirror, "client")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s\n%s", diff, text)
		}
	})
}

// runes returns a string as a rune-by-rune reader sees it. Each byte that is not part of a rune
// becomes a replacement character.
func runes(s string) string { return string([]rune(s)) }

func TestDirAndURL(t *testing.T) {
	for _, c := range []struct{ host, server, dir, url string }{
		{"docker.io", "", "docker.io", "https://registry-1.docker.io"},
		{"docker.io", "https://own.example", "docker.io", "https://own.example"},
		{"r.example:5000", "", "r.example:5000", "https://r.example:5000"},
		{"*", "", "_default", ""},
	} {
		if dir, url := Dir(c.host), URL(c.host, c.server); dir != c.dir || url != c.url {
			t.Errorf("%s %s: %s %s, want %s %s", c.host, c.server, dir, url, c.dir, c.url)
		}
	}
}
