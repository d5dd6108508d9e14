package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthrun/berth/internal/errs"
)

// conf is one configuration, read and complete.
type conf struct {
	file string
	list *libcni.NetworkConfigList
}

// confs finds the configuration that is in use. It reads the directory at each call, so
// there is no watch that could be lost when the directory is removed, replaced or mounted
// over. Reading it takes microseconds, an ADD tens of milliseconds.
type confs struct {
	dir string
	log *slog.Logger

	mu         sync.Mutex
	last       *conf
	lastLogged string // the last complaint that was logged
}

// current is the first valid configuration by name. Unavailable when there is
// none.
func (c *confs) current() (*conf, error) {
	found, err := c.look()
	if found != nil {
		err = nil
	}
	return found, err
}

// look is current, but logs the files that it skips as well.
func (c *confs) look() (*conf, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	files, err := libcni.ConfFiles(c.dir, []string{".conf", ".conflist", ".json"}) // in order of their names
	if err != nil {
		return nil, fmt.Errorf("NetworkPluginNotReady: cni config not initialized: cannot read %s: %w: %w", c.dir, err, errs.Unavailable)
	}
	var faults []error
	for _, file := range files {
		list, err := load(file)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", file, err))
			continue
		}
		c.logOnce(errors.Join(faults...))
		if c.last == nil || c.last.file != file || !bytes.Equal(c.last.list.Bytes, list.Bytes) {
			c.log.Info("CNI configuration in use", "file", file, "network", list.Name, "version", list.CNIVersion)
			c.last = &conf{file, list}
		}
		return c.last, errors.Join(faults...)
	}
	c.last = nil
	if len(faults) == 0 {
		return nil, fmt.Errorf("NetworkPluginNotReady: cni config not initialized: no configuration in %s: %w", c.dir, errs.Unavailable)
	}
	c.logOnce(errors.Join(faults...))
	return nil, fmt.Errorf("NetworkPluginNotReady: cni config not initialized: no valid configuration: %w: %w", errors.Join(faults...), errs.Unavailable)
}

// logOnce logs what is wrong with files that are skipped, once. The caller holds
// c.mu.
func (c *confs) logOnce(fault error) {
	text := ""
	if fault != nil {
		text = fault.Error()
	}
	if text != c.lastLogged && fault != nil {
		c.log.Warn("skipping an invalid CNI configuration", "error", fault)
	}
	c.lastLogged = text
}

// load reads a list, or a single plugin as a list of one.
func load(file string) (*libcni.NetworkConfigList, error) {
	var list *libcni.NetworkConfigList
	var err error
	if filepath.Ext(file) == ".conflist" {
		list, err = libcni.NetworkConfFromFile(file)
	} else {
		list, err = loadSingle(file)
	}
	if err != nil {
		return nil, err
	}
	return complete(list)
}

func loadSingle(file string) (*libcni.NetworkConfigList, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return listOfOne(data)
}

// listOfOne makes a list of the configuration of one plugin.
func listOfOne(data []byte) (*libcni.NetworkConfigList, error) {
	single, err := libcni.NetworkPluginConfFromBytes(data)
	if err != nil {
		return nil, err
	}
	whole, err := json.Marshal(map[string]any{
		"name": single.Network.Name, "cniVersion": single.Network.CNIVersion,
		"plugins": []json.RawMessage{single.Bytes},
	})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(whole)
}

// complete checks a list and makes its bytes hold all of it, also plugins that
// came from files of their own, so that the bytes alone are enough for DEL.
func complete(list *libcni.NetworkConfigList) (*libcni.NetworkConfigList, error) {
	if strings.TrimSpace(list.Name) == "" {
		return nil, errors.New("the network has no name")
	}
	if _, err := version.GreaterThan(list.CNIVersion, "0.0.0"); list.CNIVersion != "" && err != nil {
		return nil, err
	}
	var plugins []json.RawMessage
	for i, p := range list.Plugins {
		if p.Network.Type == "" {
			return nil, fmt.Errorf("plugin %d has no type", i)
		}
		plugins = append(plugins, p.Bytes)
	}
	if len(plugins) == 0 {
		return nil, errors.New("the network has no plugins")
	}
	var raw map[string]any
	if err := json.Unmarshal(list.Bytes, &raw); err != nil {
		return nil, err
	}
	raw["plugins"], raw["loadOnlyInlinedPlugins"] = plugins, true
	whole, err := json.Marshal(raw)
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(whole)
}
