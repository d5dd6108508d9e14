package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthrun/berth/internal/network"
)

// versionTimeout bounds one VERSION.
const versionTimeout = 5 * time.Second

// Networks implements network.Plugged.
func (n *Network) Networks(ctx context.Context) ([]network.Described, error) {
	confs, fault := n.confs.look()
	all := []network.Described{}
	for i, c := range confs {
		d := network.Described{Name: c.list.Name, File: c.file, CNIVersion: c.list.CNIVersion, Interface: linkName(i)}
		var confs [][]byte // of d.Plugins
		for _, p := range c.list.Plugins {
			for _, name := range []string{p.Network.Type, p.Network.IPAM.Type} {
				if name != "" && !slices.ContainsFunc(d.Plugins, func(known network.Plugin) bool { return known.Type == name }) {
					d.Plugins = append(d.Plugins, network.Plugin{Type: name})
					confs = append(confs, p.Bytes)
				}
			}
		}
		n.describe(ctx, d.Plugins, confs)
		all = append(all, d)
	}
	return all, errors.Join(fault, n.status.tolerated())
}

// describe finds each plugin, decides how it runs with its configuration, and asks for its versions.
func (n *Network) describe(ctx context.Context, plugins []network.Plugin, confs [][]byte) {
	var g errgroup.Group
	g.SetLimit(checkParallel)
	for i := range plugins {
		g.Go(func() error {
			p := &plugins[i]
			if p.Path, p.Fault = n.exec.FindInPath(p.Type, n.cfg.BinDirs); p.Fault != nil {
				return nil
			}
			how, err := n.exec.wayOf(p.Path, "ADD", confs[i])
			if err != nil {
				p.Fault = err
				return nil
			}
			p.InProcess, p.Why = how.plugin != nil, how.why
			if info, err := os.Stat(p.Path); err == nil {
				p.Build = n.exec.own.buildOf(p.Path, info)
			} else {
				p.Path = "" // it runs without a program
			}
			ctx, cancel := context.WithTimeout(ctx, versionTimeout)
			defer cancel()
			versions, err := n.lib.GetVersionInfo(ctx, p.Type)
			if err != nil {
				p.Fault = fmt.Errorf("CNI VERSION: %w", err)
				return nil
			}
			p.Versions = versions.SupportedVersions()
			return nil
		})
	}
	_ = g.Wait() // each plugin has its own fault
}
