// Package connection finds the sockets of a runtime, in flags, environment and settings file, and
// connects to them.
package connection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

// defaultConfig is the settings file on nodes.
const defaultConfig = "/etc/crictl.yaml"

// defaultTimeout bounds connecting to the socket.
const defaultTimeout = 2 * time.Second

// defaultSockets are tried in this order if none is configured.
func defaultSockets() []string {
	return []string{criclient.DefaultEndpoint, "unix:///run/containerd/containerd.sock", "unix:///run/crio/crio.sock", "unix:///var/run/cri-dockerd.sock"}
}

// Settings are the flags before the verb, with values of the environment and the file for flags
// that are not set.
type Settings struct {
	Getenv                 func(string) string
	config, runtime, image string
	timeout                time.Duration
	debug                  bool
	retries                int
}

// Register adds the flags.
func (s *Settings) Register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&s.config, "config", "c", "", "settings file (default: $CRI_CONFIG_FILE, "+defaultConfig+")")
	flags.StringVarP(&s.runtime, "runtime-endpoint", "r", "", "socket of the runtime, unix:///PATH (default: $CONTAINER_RUNTIME_ENDPOINT, the file's, or the first of "+strings.Join(defaultSockets(), ", ")+")")
	flags.StringVarP(&s.image, "image-endpoint", "i", "", "socket for images (default: $IMAGE_SERVICE_ENDPOINT, the file's, or the runtime's)")
	flags.DurationVarP(&s.timeout, "timeout", "t", 0, "timeout of connecting (default: the file's, or 2s)")
	flags.BoolVarP(&s.debug, "debug", "D", false, "show which socket is used")
	flags.IntVar(&s.retries, "max-retries", 0, "accepted for compatibility: calls always wait for a runtime that restarts")
}

// file is crictl's settings file. Its other keys concern verbs that are not here.
type file struct {
	Runtime string `json:"runtime-endpoint"`
	Image   string `json:"image-endpoint"`
	Timeout int    `json:"timeout"`
	Debug   bool   `json:"debug"`
}

// read reads the settings file. Only the default one may be missing.
func (s *Settings) read() (file, error) {
	var found file
	named := cmp.Or(s.config, s.Getenv("CRI_CONFIG_FILE"))
	places := []string{named}
	if named == "" {
		places = []string{defaultConfig}
		if dir := programDir(); dir != "" {
			places = append(places, filepath.Join(dir, "crictl.yaml"))
		}
	}
	for _, place := range places {
		data, err := os.ReadFile(place)
		if errors.Is(err, fs.ErrNotExist) && named == "" {
			continue
		}
		if err != nil {
			return file{}, fmt.Errorf("cannot read the settings: %w", err)
		}
		if err := yaml.Unmarshal(data, &found); err != nil {
			return file{}, fmt.Errorf("cannot read the settings in %s: %w: %w", place, errs.Invalid, err)
		}
		break
	}
	return found, nil
}

// Clients are connections to a runtime and to its image service.
type Clients struct {
	Runtime runtimeapi.RuntimeServiceClient
	Images  runtimeapi.ImageServiceClient
	conns   []*criclient.Conn
}

func (c *Clients) close() {
	for _, conn := range c.conns {
		conn.Close()
	}
}

// Use runs a verb with connections.
func (s *Settings) Use(cmd *cobra.Command, do func(context.Context, *Clients) error) error {
	c, err := s.connect(cmd)
	if err != nil {
		return err
	}
	defer c.close()
	return do(cmd.Context(), c)
}

func (s *Settings) connect(cmd *cobra.Command) (_ *Clients, err error) {
	found, err := s.read()
	if err != nil {
		return nil, err
	}
	timeout := cmp.Or(s.timeout, time.Duration(found.Timeout)*time.Second, defaultTimeout)
	runtime := cmp.Or(s.runtime, s.Getenv("CONTAINER_RUNTIME_ENDPOINT"), found.Runtime)
	if runtime == "" {
		runtime = firstSocket(defaultSockets())
	}
	images := cmp.Or(s.image, s.Getenv("IMAGE_SERVICE_ENDPOINT"), found.Image, runtime)
	c := &Clients{}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	conns := map[string]*criclient.Conn{}
	for _, endpoint := range []string{runtime, images} {
		if conns[endpoint] != nil {
			continue
		}
		if s.debug || found.Debug {
			fmt.Fprintf(cmd.ErrOrStderr(), "connecting to %s\n", endpoint)
		}
		if conns[endpoint], err = dial(cmd.Context(), endpoint, timeout); err != nil {
			return nil, err
		}
		c.conns = append(c.conns, conns[endpoint])
	}
	c.Runtime, c.Images = conns[runtime].Runtime, conns[images].Images
	return c, nil
}

func dial(ctx context.Context, endpoint string, timeout time.Duration) (*criclient.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return criclient.Dial(ctx, endpoint)
}

// firstSocket is the first one that exists; if none does, the error is that of the first.
func firstSocket(endpoints []string) string {
	for _, endpoint := range endpoints {
		info, err := os.Stat(strings.TrimPrefix(endpoint, "unix://"))
		if err == nil && info.Mode()&fs.ModeSocket != 0 {
			return endpoint
		}
	}
	return endpoints[0]
}

// programDir is the directory of this program, by the path that it was called with.
func programDir() string {
	if !strings.Contains(os.Args[0], "/") {
		return ""
	}
	return filepath.Dir(os.Args[0])
}
