package berthapi

import (
	"context"
	"fmt"

	"github.com/berthrun/berth/internal/berthapi/berthpb"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network"
)

// NetworkList is the networks of CNI plugins that are in use.
type NetworkList struct {
	Networks []Network `json:"networks"`
	// Fault is that of other configurations, or of the plugins.
	Fault string `json:"fault,omitempty"`
}

// Network is a network in use; see network.Described.
type Network struct {
	Name       string          `json:"name"`
	File       string          `json:"file"`
	CNIVersion string          `json:"cniVersion"`
	Interface  string          `json:"interface"`
	Plugins    []NetworkPlugin `json:"plugins"`
}

// NetworkPlugin is the program of a plugin; see network.Plugin.
type NetworkPlugin struct {
	Type     string   `json:"type"`
	Path     string   `json:"path,omitempty"`
	Versions []string `json:"versions,omitempty"`
	Build    string   `json:"build,omitempty"`
	Fault    string   `json:"fault,omitempty"`
	// InProcess is whether the plugin runs inside berth, Why the reason.
	InProcess bool   `json:"inProcess"`
	Why       string `json:"why,omitempty"`
}

// NetworkCheckList is what checks of sandboxes' networks found.
type NetworkCheckList struct {
	Checks []NetworkCheck `json:"checks"`
}

// NetworkCheck is what the check of one attachment found; see network.Checked.
type NetworkCheck struct {
	SandboxID string `json:"sandboxID"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Network   string `json:"network,omitempty"`
	Interface string `json:"interface,omitempty"`
	Skipped   string `json:"skipped,omitempty"`
	Fault     string `json:"fault,omitempty"`
}

// errNoPlugins is the error, of kind State, of a network without plugins.
func errNoPlugins() error {
	return fmt.Errorf("berth's own bridge is the network, and no CNI plugin (network.mode); `berth info` describes it: %w", errs.State)
}

// text is an error as a message has it, "" for none.
func text(err error) string {
	if err == nil {
		return ""
	}
	return validText(errs.Message(err))
}

// ListNetworks implements berthpb.BerthServer.
func (h *handlers) ListNetworks(ctx context.Context, _ *berthpb.ListNetworksRequest) (*berthpb.ListNetworksResponse, error) {
	if h.plugins == nil {
		return nil, errNoPlugins()
	}
	networks, fault := h.plugins.Networks(ctx)
	resp := &berthpb.ListNetworksResponse{Fault: text(fault)}
	for _, n := range networks {
		out := &berthpb.Network{Name: n.Name, File: validText(n.File), CniVersion: n.CNIVersion, Interface: n.Interface}
		for _, p := range n.Plugins {
			out.Plugins = append(out.Plugins, &berthpb.NetworkPlugin{
				Type: p.Type, Path: validText(p.Path), Versions: p.Versions, Build: validText(p.Build), Fault: text(p.Fault),
				InProcess: p.InProcess, Why: validText(p.Why),
			})
		}
		resp.Networks = append(resp.Networks, out)
	}
	return resp, nil
}

// CheckNetworks implements berthpb.BerthServer.
func (h *handlers) CheckNetworks(ctx context.Context, req *berthpb.CheckNetworksRequest) (*berthpb.CheckNetworksResponse, error) {
	if h.checks == nil {
		return nil, errNoPlugins()
	}
	checks, err := h.checks.Check(ctx, req.GetSandboxes())
	if err != nil {
		return nil, err
	}
	resp := &berthpb.CheckNetworksResponse{}
	for i := range checks {
		c := &checks[i]
		resp.Checks = append(resp.Checks, &berthpb.NetworkCheck{
			SandboxId: c.SandboxID, Namespace: c.Namespace, Name: c.Name, Network: c.Network, Interface: c.Interface,
			Skipped: c.Skipped, Fault: text(c.Fault),
		})
	}
	return resp, nil
}

// Plugins is the network of CNI plugins; see network.Plugged.
type Plugins interface {
	Networks(ctx context.Context) ([]network.Described, error)
}

// ListNetworks returns the networks of CNI plugins that are in use. Kind State when the
// daemon has another network.
func (c *Client) ListNetworks(ctx context.Context) (*NetworkList, error) {
	resp, err := c.api.ListNetworks(ctx, &berthpb.ListNetworksRequest{})
	if err != nil {
		return nil, err
	}
	list := &NetworkList{Networks: []Network{}, Fault: resp.GetFault()}
	for _, n := range resp.GetNetworks() {
		out := Network{Name: n.GetName(), File: n.GetFile(), CNIVersion: n.GetCniVersion(), Interface: n.GetInterface()}
		for _, p := range n.GetPlugins() {
			out.Plugins = append(out.Plugins, NetworkPlugin{
				Type: p.GetType(), Path: p.GetPath(), Versions: p.GetVersions(), Build: p.GetBuild(), Fault: p.GetFault(),
				InProcess: p.GetInProcess(), Why: p.GetWhy(),
			})
		}
		list.Networks = append(list.Networks, out)
	}
	return list, nil
}

// CheckNetworks has the plugins check the networks of sandboxes, of all without an id. Kind
// State when the daemon has another network, NotFound for a sandbox that is not attached.
func (c *Client) CheckNetworks(ctx context.Context, sandboxes []string) (*NetworkCheckList, error) {
	resp, err := c.api.CheckNetworks(ctx, &berthpb.CheckNetworksRequest{Sandboxes: sandboxes})
	if err != nil {
		return nil, err
	}
	list := &NetworkCheckList{Checks: []NetworkCheck{}}
	for _, n := range resp.GetChecks() {
		list.Checks = append(list.Checks, NetworkCheck{
			SandboxID: n.GetSandboxId(), Namespace: n.GetNamespace(), Name: n.GetName(), Network: n.GetNetwork(),
			Interface: n.GetInterface(), Skipped: n.GetSkipped(), Fault: n.GetFault(),
		})
	}
	return list, nil
}
