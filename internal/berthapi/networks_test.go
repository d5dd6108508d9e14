package berthapi_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
)

// plugins is a network of one plugin.
type plugins struct{ asked []string }

func (*plugins) Networks(context.Context) ([]network.Described, error) {
	return []network.Described{{
		Name: "net", File: "/etc/cni/net.d/10-net.conflist", CNIVersion: "1.1.0", Interface: "eth0",
		Plugins: []network.Plugin{
			{Type: "bridge", Path: "/opt/cni/bin/bridge", Versions: []string{"1.0.0", "1.1.0"}, Build: "m@v1", InProcess: true, Why: "its program is m@v1"},
			{Type: "gone", Fault: errors.New("failed to find plugin")},
		},
	}}, errors.New("20-x.conflist: no name")
}

func (p *plugins) Check(_ context.Context, sandboxes []string) ([]network.Checked, error) {
	p.asked = sandboxes
	if len(sandboxes) == 1 {
		return nil, fmt.Errorf("it is not attached: %w", errs.NotFound)
	}
	return []network.Checked{
		{SandboxID: "ab", Namespace: "default", Name: "web", Network: "net", Interface: "eth0", Fault: errors.New("no route \xff")},
		{SandboxID: "cd", Skipped: "it is being detached"},
	}, nil
}

func TestNetworks(t *testing.T) {
	p := &plugins{}
	api := &berthapi.Server{Images: &fakeImages{}, Jobs: func() []berthapi.Job { return nil }, Plugins: p, Checks: p}
	c := connect(t, api.Register).Berth
	list, err := c.ListNetworks(t.Context())
	want := &berthapi.NetworkList{Fault: "20-x.conflist: no name", Networks: []berthapi.Network{{
		Name: "net", File: "/etc/cni/net.d/10-net.conflist", CNIVersion: "1.1.0", Interface: "eth0",
		Plugins: []berthapi.NetworkPlugin{
			{Type: "bridge", Path: "/opt/cni/bin/bridge", Versions: []string{"1.0.0", "1.1.0"}, Build: "m@v1", InProcess: true, Why: "its program is m@v1"},
			{Type: "gone", Fault: "failed to find plugin"},
		},
	}}}
	if err != nil || !reflect.DeepEqual(list, want) {
		t.Errorf("%+v, %v, want %+v", list, err, want)
	}
	checks, err := c.CheckNetworks(t.Context(), []string{"ab", "cd"})
	wantChecks := &berthapi.NetworkCheckList{Checks: []berthapi.NetworkCheck{
		{SandboxID: "ab", Namespace: "default", Name: "web", Network: "net", Interface: "eth0", Fault: "no route \uFFFD"},
		{SandboxID: "cd", Skipped: "it is being detached"},
	}}
	if err != nil || !reflect.DeepEqual(checks, wantChecks) || !reflect.DeepEqual(p.asked, []string{"ab", "cd"}) {
		t.Errorf("%+v, %v, asked for %q", checks, err, p.asked)
	}
	if _, err := c.CheckNetworks(t.Context(), []string{"ef"}); !errors.Is(err, errs.NotFound) {
		t.Errorf("a sandbox that is not attached: %v, want kind NotFound", err)
	}
}

func TestNetworksWithoutPlugins(t *testing.T) {
	api := &berthapi.Server{Images: &fakeImages{}, Jobs: func() []berthapi.Job { return nil }}
	c := connect(t, api.Register).Berth
	_, listErr := c.ListNetworks(t.Context())
	_, checkErr := c.CheckNetworks(t.Context(), nil)
	if !errors.Is(listErr, errs.State) || !errors.Is(checkErr, errs.State) {
		t.Errorf("%v, %v, want kind State", listErr, checkErr)
	}
}
