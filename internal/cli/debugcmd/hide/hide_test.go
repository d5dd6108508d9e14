package hide

import (
	"encoding/json"
	"strings"
	"testing"
)

const secret = "hunter2S3cr3t"

// hides requires that nothing of the secret is left, and that what shows stays.
func hides(t *testing.T, name, got string, shows ...string) {
	t.Helper()
	if strings.Contains(got, secret) || strings.Contains(got, "unter2") {
		t.Errorf("%s: the secret shows in %s", name, got)
	}
	for _, want := range shows {
		if !strings.Contains(got, want) {
			t.Errorf("%s: %q is not in %s", name, want, got)
		}
	}
}

func TestText(t *testing.T) {
	h := New()
	for text, shows := range map[string]string{
		"DB_PASSWORD=" + secret:                                                                 "DB_PASSWORD=",
		"export API_KEY='" + secret + "' and more":                                              "and more",
		"a=1 AWS_SECRET_ACCESS_KEY=" + secret + " b=2":                                          "b=2",
		"kubelet --token " + secret + " --v=2":                                                  "--v=2",
		"tool --db-password=" + secret + " serve":                                               "serve",
		"curl -u joe:" + secret + " https://example.org/x":                                      "https://example.org/x",
		"mysql -h db -p" + secret + " app":                                                      "app",
		"//srv/share /mnt cifs rw,username=joe,password=" + secret + ",uid=0":                   "cifs rw",
		"create secret generic db --from-literal=pw=" + secret + " -n a":                        "-n a",
		"X-Api-Key: " + secret:                                                                  "X-Api-Key: ",
		`level=info token=` + secret + ` method=Pull`:                                           "method=Pull",
		`{"level":"info","registry_token":"` + secret + `"}`:                                    "registry_token",
		"https://joe:" + secret + "@example.org/v2/":                                            "example.org/v2/",
		"Authorization: Bearer " + secret + secret:                                              "Authorization",
		"ghp_" + secret + "abcdefgh":                                                            "",
		"-----BEGIN RSA PRIVATE KEY-----\n" + secret + "\n-----END RSA PRIVATE KEY-----\nafter": "after",
	} {
		hides(t, text, h.Text(text), shows)
	}
	if got := h.Text("joined with abcdef.0123456789abcdef now"); strings.Contains(got, "0123456789abcdef") {
		t.Errorf("a bootstrap token shows: %s", got)
	}
	for _, plain := range []string{
		`time=2026-01-02T03:04:05Z level=INFO msg="sandbox is ready" sandbox=3f9a pod=default/web/1/0 took=31ms`,
		"36 25 0:31 / /run/berth rw,nosuid,nodev shared:5 - tmpfs tmpfs rw,size=100k,mode=755",
		"the registry asks for a token; basic auth is off",
	} {
		if got := h.Text(plain); got != plain {
			t.Errorf("%q became %q", plain, got)
		}
	}
}

func TestJSON(t *testing.T) {
	h := New()
	for name, doc := range map[string]struct{ text, shows string }{
		"CRI's environment":   {`{"envs":[{"key":"DB","value":"` + secret + `"}]}`, `"DB"`},
		"OCI's environment":   {`{"process":{"env":["DB=` + secret + `","PATH=/bin"]}}`, `DB=[hidden]`},
		"environment as map":  {`{"env":{"DB":"` + secret + `"}}`, `"DB"`},
		"arguments":           {`{"args":["/bin/app","--db=` + secret + `","` + secret + `","-p","` + secret + `"]}`, `/bin/app`},
		"a script":            {`{"command":["sh -c ` + secret + `"]}`, "hidden"},
		"annotations":         {`{"annotations":{"example.org/api-token":"` + secret + `","example.org/x":"y"}}`, `"y"`},
		"applied manifests":   {`{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"a\":\"` + secret + `\"}"}}`, "last-applied"},
		"JSON in a string":    {`{"config":"{\"env\":[\"A=` + secret + `\"],\"root\":\"/r\"}"}`, "/r"},
		"the binary form":     {`{"config":{"@wire":"` + secret + `","metadata":{"name":"web"}}}`, "web"},
		"registry's login":    {`{"auth":{"username":"joe","password":"` + secret + `"}}`, "username"},
		"history of an image": {`{"history":[{"created_by":"RUN x ` + secret + `"}]}`, "created_by"},
		"a number":            {`{"token":1234,"n":12345678901234567890}`, "12345678901234567890"},
		"text in a list":      {`["PASSWORD=` + secret + `"]`, "PASSWORD="},
		"no JSON":             {`not JSON PASSWORD=` + secret, "not JSON"},
		"several documents":   {`{"a":1} {"token":"` + secret + `"}`, "token"},
		"headers":             {`{"headers":{"X-A":["` + secret + `"]}}`, "X-A"},
	} {
		hides(t, name, string(h.JSON([]byte(doc.text))), doc.shows)
	}
	if strings.Contains(string(h.JSON([]byte(`{"token":1234}`))), "1234") {
		t.Error("a number that is a secret shows")
	}
	plain := `{"id":"3f9a","labels":{"app":"web"},"pid":12,"ready":true,"secret":""}`
	var want, got any
	if err := json.Unmarshal([]byte(plain), &want); err != nil {
		t.Fatal(err)
	}
	shown := h.JSON([]byte(plain))
	if err := json.Unmarshal(shown, &got); err != nil {
		t.Fatalf("%v: %s", err, shown)
	}
	a, _ := json.Marshal(want)
	b, _ := json.Marshal(got)
	if string(a) != string(b) {
		t.Errorf("%s became %s", a, b)
	}
}

func TestTOML(t *testing.T) {
	got := New().TOML(`server = "https://joe:` + secret + `@r.example.org"
# token = "` + secret + `"
[host."https://m.example.org"]
  capabilities = ["pull"]
  password = "` + secret + `"
  [host."https://m.example.org".header]
    x-custom = ["` + secret + `",
      "` + secret + `"]
[host."https://o.example.org/?a=b".header]
    x-other = "` + secret + `"
[host."https://n.example.org"]
  ca = "/etc/ca.pem"
`)
	hides(t, "hosts.toml", got, `capabilities = ["pull"]`, `ca = "/etc/ca.pem"`, "x-custom")
}

// FuzzJSON: what is hidden stays JSON, and a value under a secret name never shows.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{`{"password":"x"}`, `{"env":["A=B"]}`, `[1,"a"]`, `"{\"token\":\"x\"}"`, `{`} {
		f.Add(seed, "hunter2")
	}
	h := New()
	f.Fuzz(func(t *testing.T, text, value string) {
		if json.Valid([]byte(text)) && !json.Valid(h.JSON([]byte(text))) {
			t.Errorf("%q is JSON, and %q is not", text, h.JSON([]byte(text)))
		}
		h.Text(text)
		h.TOML(text)
		if len(value) < 4 || strings.Contains(Hidden, value) || strings.Contains("password", value) {
			return
		}
		doc, err := json.Marshal(map[string]any{"password": value})
		if err != nil {
			t.Fatal(err)
		}
		var shown map[string]string
		if err := json.Unmarshal(h.JSON(doc), &shown); err != nil || shown["password"] != Hidden {
			t.Errorf("%q shows as %v, %v", value, shown, err)
		}
	})
}
