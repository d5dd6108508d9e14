// Package faults finds the fields of requests that errors of a Docker Engine are about. The engine
// reports its own checks, and what its OCI runtime says, as text.
package faults

import (
	"errors"
	"fmt"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/faultfield"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/errs/ocierror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// Create adds to the error of a create the field of the request that the engine has refused. It
// returns any other error as it is.
func Create(err error) error {
	if err == nil || !errors.Is(err, errs.Invalid) {
		return err
	}
	if limit := limitOf(err); limit != "" {
		return fmt.Errorf("%s.%s: %w", request.FieldCreate, limit, err)
	}
	return err
}

// IsOfDirectory reports whether an engine could not create a container because its working directory
// leads through a file of the image. The engine makes the directory, not the container's runtime.
func IsOfDirectory(err error) bool {
	if err == nil {
		return false
	}
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "cannot mkdir") && strings.Contains(text, "not a directory")
}

// IsLinkLoop reports whether an engine could not find a file of a container because links lead to
// themselves.
func IsLinkLoop(err error) bool {
	return err != nil && strings.Contains(strings.ToLower(err.Error()), "too many links")
}

// Update does the same for new limits of a container, which are in the request's field.
func Update(field string, err error) error {
	if err == nil || errors.Is(err, errs.NotFound) || errors.Is(err, errs.Unavailable) {
		return err
	}
	if limit := limitOf(err); limit != "" {
		return fmt.Errorf("%s.%s: %w: %w", field, limit, err, errs.Invalid)
	}
	return faultfield.Limit(field, ofRuntime(err))
}

// Start returns the error of a start, which text describes, with the field of the container's
// request that is wrong. requested is nil if the request is not known any more; then the error
// names no field. All faults of a start are Invalid, because they are of the container.
func Start(requested *runtimeapi.ContainerConfig, text string) error {
	err := ofRuntime(errors.New(strings.TrimSpace(text)))
	if !errors.Is(err, errs.Invalid) {
		err = fmt.Errorf("%w: %w", err, errs.Invalid)
	}
	return faultfield.Container(requested, err)
}

// ofRuntime gives an error that the engine has of its OCI runtime a kind and a cause.
func ofRuntime(err error) error {
	if kind := ocierror.Kind(err); kind != nil && errs.Kind(err) == nil {
		err = fmt.Errorf("%w: %w", err, kind)
	}
	if cause, at := ocierror.Cause(err, ""); cause != "" {
		return &errs.Fault{Cause: cause, Path: at, Err: err}
	}
	return err
}

// limitOf returns the field of LinuxContainerResources that the engine's own checks refuse, ""
// for none.
func limitOf(err error) string {
	text := strings.ToLower(err.Error())
	for _, check := range []struct{ words, field string }{
		{"requested cpus are not available", "cpuset_cpus"},
		{"cpuset cpus", "cpuset_cpus"},
		{"requested memory nodes are not available", "cpuset_mems"},
		{"cpuset mems", "cpuset_mems"},
		{"memoryswap limit", "memory_swap_limit_in_bytes"},
		{"minimum memory limit", "memory_limit_in_bytes"},
		{"cpu cfs period", "cpu_period"},
		{"cpu cfs quota", "cpu_quota"},
		{"invalid cpu shares", "cpu_shares"},
	} {
		if strings.Contains(text, check.words) {
			return check.field
		}
	}
	return ""
}
