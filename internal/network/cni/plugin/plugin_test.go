package plugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthrun/berth/internal/network/cni/plugin"
)

// fake is a plugin whose ADD a test decides.
func fake(add func(*plugin.Call) (types.Result, error)) *plugin.Plugin {
	return &plugin.Plugin{
		Type: "fake", Versions: version.All,
		Options: plugin.Options{"known": nil, "list": {"id": nil}},
		Add:     func(_ context.Context, c *plugin.Call) (types.Result, error) { return add(c) },
	}
}

// call makes a call with variables besides those that every call has.
func call(t *testing.T, p *plugin.Plugin, conf string, env ...string) (string, *types.Error) {
	t.Helper()
	env = append([]string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=id", "CNI_IFNAME=eth0", "CNI_NETNS=/nonesuch", "CNI_PATH=/nonesuch",
	}, env...)
	out, err := p.Run(t.Context(), plugin.Environment{Env: env}, []byte(conf))
	var fault *types.Error
	if err != nil && !errors.As(err, &fault) {
		t.Fatalf("%v is not a types.Error", err)
	}
	return string(out), fault
}

const conf = `{"cniVersion":"0.3.1","name":"net","type":"fake"}`

func TestResultHasTheVersionOfTheConfiguration(t *testing.T) {
	p := fake(func(*plugin.Call) (types.Result, error) {
		return &types100.Result{CNIVersion: types100.ImplementedSpecVersion}, nil
	})
	out, err := call(t, p, conf)
	if err != nil {
		t.Fatal(err)
	}
	var result struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil || result.CNIVersion != "0.3.1" {
		t.Errorf("%s, %v, want version 0.3.1", out, err)
	}
}

// TestPanic: a fault in a plugin is an error of one call. It names the plugin, the verb and the stage.
func TestPanic(t *testing.T) {
	broken := true
	p := fake(func(c *plugin.Call) (types.Result, error) {
		c.Stage("count to three")
		if broken {
			panic("lost count")
		}
		return &types100.Result{CNIVersion: types100.ImplementedSpecVersion}, nil
	})
	_, err := call(t, p, conf)
	for _, want := range []string{"ADD of the CNI plugin fake", `stage "count to three"`, "lost count"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	broken = false
	if _, err := call(t, p, conf); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

// TestRefusedCalls: codes and texts are those of the CNI library's plugins.
func TestRefusedCalls(t *testing.T) {
	p := fake(func(*plugin.Call) (types.Result, error) { return nil, errors.New("did nothing") })
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		conf string
		env  []string
		code uint
		text string
	}{
		"own error":         {conf: conf, code: types.ErrInternal, text: "did nothing"},
		"no verb":           {conf: conf, env: []string{"CNI_COMMAND="}, code: 4, text: "required env variables [CNI_COMMAND] missing"},
		"variables missing": {conf: conf, env: []string{"CNI_CONTAINERID=", "CNI_PATH="}, code: 4, text: "required env variables [CNI_CONTAINERID,CNI_PATH] missing"},
		"container":         {conf: conf, env: []string{"CNI_CONTAINERID=.."}, code: 4, text: "invalid characters in containerID"},
		"interface":         {conf: conf, env: []string{"CNI_IFNAME=a/b"}, code: 4, text: "interface name contains / or : or whitespace characters"},
		"unknown verb":      {conf: conf, env: []string{"CNI_COMMAND=LOOK"}, code: 4, text: "unknown CNI_COMMAND: LOOK"},
		"no JSON":           {conf: "{", code: types.ErrDecodingFailure, text: "error unmarshall network config: unexpected end of JSON input"},
		"no name":           {conf: `{"cniVersion":"1.0.0"}`, code: types.ErrInvalidNetworkConfig, text: "missing network name"},
		"version":           {conf: `{"cniVersion":"9.0.0","name":"n"}`, code: types.ErrIncompatibleCNIVersion, text: "incompatible CNI versions"},
		"CHECK too old":     {conf: conf, env: []string{"CNI_COMMAND=CHECK"}, code: types.ErrIncompatibleCNIVersion, text: "config version does not allow CHECK"},
		"GC too old":        {conf: conf, env: []string{"CNI_COMMAND=GC"}, code: types.ErrIncompatibleCNIVersion, text: "config version does not allow GC"},
	} {
		_, got := call(t, p, c.conf, c.env...)
		if got == nil || got.Code != c.code || got.Msg != c.text {
			t.Errorf("%s: %+v, want code %d: %s", name, got, c.code, c.text)
		}
	}
	ok := fake(func(*plugin.Call) (types.Result, error) {
		return &types100.Result{CNIVersion: types100.ImplementedSpecVersion}, nil
	})
	if _, err := call(t, ok, conf, "CNI_NETNS=/proc/self/ns/net"); err == nil || err.Code != types.ErrInvalidNetNS {
		t.Errorf("the host's own namespace %s: %v, want code %d", own, err, types.ErrInvalidNetNS)
	}
}

func TestVersion(t *testing.T) {
	out, err := call(t, fake(nil), "", "CNI_COMMAND=VERSION")
	if err != nil || !strings.Contains(out, `"1.1.0"`) {
		t.Errorf("%s, %v", out, err)
	}
}

func TestUnknownOption(t *testing.T) {
	p := fake(nil)
	for config, want := range map[string]string{
		`{"name":"n","type":"fake","cniVersion":"1.0.0","prevResult":{"x":1},"args":{"x":1},"runtimeConfig":{"x":1},"capabilities":{"x":true},"dns":{}}`: "",
		`{"known":{"anything":1},"list":[{"id":1},{"id":2}]}`: "",
		`{"KNOWN":1,"Name":"n"}`:                              "", // as encoding/json reads it
		`{"known":1,"other":1,"another":2}`:                   "another",
		`{"list":[{"id":1},{"id":2,"x":3}]}`:                  "list[1].x",
		`{"list":{"x":3}}`:                                    "list.x",
		`{"list":7}`:                                          "", // the verb refuses it
		`nonsense`:                                            "",
	} {
		if got := p.UnknownOption([]byte(config)); got != want {
			t.Errorf("%s: %q, want %q", config, got, want)
		}
	}
}

// FuzzUnknownOption: no configuration ends the search, and an option that is reported is a key of it.
func FuzzUnknownOption(f *testing.F) {
	f.Add([]byte(`{"list":[{"x":1}]}`))
	f.Fuzz(func(t *testing.T, config []byte) {
		unknown := fake(nil).UnknownOption(config)
		if unknown != "" && !json.Valid(config) {
			t.Errorf("%q: %q", config, unknown)
		}
	})
}
