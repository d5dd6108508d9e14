package plugin_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthrun/berth/internal/network/cni/plugin"
)

// ipam is an Exec of one IPAM plugin, which a test decides.
type ipam struct {
	version.PluginDecoder
	add   func(stage func(string)) ([]byte, error)
	stage func(string)
}

func (i *ipam) FindInPath(name string, _ []string) (string, error) { return "/plugins/" + name, nil }

func (i *ipam) ExecPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	return i.add(i.stage)
}

func (i *ipam) Beside(path string, _ []byte, stage func(string)) invoke.Exec {
	if path != "/plugins/files" {
		return nil
	}
	return &ipam{add: i.add, stage: stage}
}

// TestAddBeside: an IPAM plugin runs while its caller works, and the stages are those of the one that is waited for.
func TestAddBeside(t *testing.T) {
	begun, worked, waiting := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var stages []string
	in := plugin.Environment{
		Env: []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=id", "CNI_IFNAME=eth0", "CNI_NETNS=/nonesuch", "CNI_PATH=/plugins"},
		Stage: func(name string) {
			mu.Lock()
			stages = append(stages, name)
			mu.Unlock()
			if name == "before the work" {
				close(waiting)
			}
		},
		Exec: &ipam{add: func(stage func(string)) ([]byte, error) {
			stage("before the work")
			close(begun)
			<-worked
			<-waiting
			stage("after the work")
			return []byte(`{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24"}]}`), nil
		}},
	}
	p := fake(func(c *plugin.Call) (types.Result, error) {
		wait := c.AddBeside(t.Context(), "files")
		<-begun
		c.Stage("work")
		close(worked)
		return wait()
	})
	out, err := p.Run(t.Context(), in, []byte(`{"cniVersion":"1.0.0","name":"net","type":"fake"}`))
	if err != nil || !strings.Contains(string(out), "10.1.2.3/24") {
		t.Errorf("%s, %v", out, err)
	}
	if want := []string{"work", "before the work", "after the work"}; !slices.Equal(stages, want) {
		t.Errorf("stages %q, want %q", stages, want)
	}
}

// TestAddBesideFails: an error and a panic of the plugin beside come from wait. A plugin that needs more than files does
// not run beside its caller.
func TestAddBesideFails(t *testing.T) {
	for name, c := range map[string]struct {
		add  func(func(string)) ([]byte, error)
		want string
	}{
		"an error": {func(func(string)) ([]byte, error) { return nil, errors.New("no address is free") }, "no address is free"},
		"a panic":  {func(func(string)) ([]byte, error) { panic("lost count") }, "lost count"},
	} {
		p := fake(func(call *plugin.Call) (types.Result, error) {
			if call.AddBeside(t.Context(), "links") != nil {
				t.Error("a plugin that needs links runs beside its caller")
			}
			return call.AddBeside(t.Context(), "files")()
		})
		in := plugin.Environment{
			Env:  []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=id", "CNI_IFNAME=eth0", "CNI_NETNS=/nonesuch", "CNI_PATH=/plugins"},
			Exec: &ipam{add: c.add},
		}
		if out, err := p.Run(t.Context(), in, []byte(conf)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %s, %v, want %q", name, out, err, c.want)
		}
	}
}

// TestIdle: a plugin that has nothing to do on the host returns its result without a thread in the host's namespace.
func TestIdle(t *testing.T) {
	p := fake(func(c *plugin.Call) (types.Result, error) {
		if c.Home() != nil {
			t.Error("the call has a thread for the host's network namespace")
		}
		return &types100.Result{CNIVersion: types100.ImplementedSpecVersion}, nil
	})
	p.Idle = func([]byte) bool { return true }
	if out, err := call(t, p, conf); err != nil || out == "" {
		t.Errorf("%s, %v", out, err)
	}
}
