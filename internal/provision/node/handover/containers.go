package handover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/errs"
)

// DockerSocket is the path of the Docker Engine's default socket.
const DockerSocket = "/run/docker.sock"

// dockerTimeout bounds a request to the Docker Engine, except the stop of a container.
const dockerTimeout = 10 * time.Second

// labelType is on each container that is part of a pod. dockershim introduced it.
const labelType = "io.kubernetes.docker.type"

// Container is a running container of a Docker Engine.
type Container struct {
	ID, Name string
	// OfPod is true for a container that a CRI server made.
	OfPod bool
}

// Containers are operations on the containers of the Docker Engine at Socket. They connect to it,
// so they start an engine that a socket unit starts.
type Containers struct{ Socket string }

func (c Containers) client(timeout time.Duration) (*api.Client, error) {
	return api.New(api.Options{Endpoint: "unix://" + c.Socket, Timeout: timeout})
}

// Running lists the containers that run.
func (c Containers) Running(ctx context.Context) (list []Container, err error) {
	engine, err := c.client(dockerTimeout)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	found, err := engine.ContainerList(ctx, client.ContainerListOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot list docker's containers: %w", err)
	}
	for _, item := range found.Items {
		running := Container{ID: item.ID, Name: item.ID[:min(len(item.ID), 12)], OfPod: item.Labels[labelType] != ""}
		if len(item.Names) > 0 {
			running.Name = strings.TrimPrefix(item.Names[0], "/")
		}
		list = append(list, running)
	}
	return list, nil
}

// Stop stops containers, one after the other: the engine waits for the grace period of each, then
// kills it. Stop tries all. A container that is gone, or has stopped, is not an error.
func (c Containers) Stop(ctx context.Context, list []Container) error {
	return c.each("stop", list, func(engine *api.Client, id string) error {
		_, err := engine.ContainerStop(ctx, id, client.ContainerStopOptions{})
		return err
	})
}

// Start starts containers again. It tries all. A container that is gone, or runs, is not an error.
func (c Containers) Start(ctx context.Context, list []Container) error {
	return c.each("start", list, func(engine *api.Client, id string) error {
		_, err := engine.ContainerStart(ctx, id, client.ContainerStartOptions{})
		return err
	})
}

func (c Containers) each(verb string, list []Container, do func(engine *api.Client, id string) error) (err error) {
	engine, err := c.client(stopTimeout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	var failed []error
	for _, container := range list {
		if err := errs.IgnoreNotFound(do(engine, container.ID)); err != nil {
			failed = append(failed, fmt.Errorf("cannot %s docker's container %s: %w", verb, container.Name, err))
		}
	}
	return errors.Join(failed...)
}
