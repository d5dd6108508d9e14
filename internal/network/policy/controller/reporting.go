package controller

import (
	"context"
	"log/slog"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
)

// reporting logs what goes wrong while objects are listed and watched. An informer retries forever, and
// reports to a log that berth does not have.
type reporting struct {
	inner cache.ListerWatcherWithContext
	from  cache.ListerWatcher
	what  string
	log   *slog.Logger
}

var _ cache.ListerWatcherWithContext = reporting{}

func (r reporting) List(o metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), o)
}

func (r reporting) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), o)
}

func (r reporting) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list, err := r.inner.ListWithContext(ctx, o)
	r.report(ctx, "cannot list the "+r.what+" of the cluster; will be tried again", err)
	return list, err
}

func (r reporting) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	events, err := r.inner.WatchWithContext(ctx, o)
	r.report(ctx, "cannot watch the "+r.what+" of the cluster; will be tried again", err)
	return events, err
}

func (r reporting) report(ctx context.Context, message string, err error) {
	if err != nil && ctx.Err() == nil {
		r.log.Warn(message, "error", err)
	}
}

// IsWatchListSemanticsUnSupported passes on what the client can do.
func (r reporting) IsWatchListSemanticsUnSupported() bool {
	return watchlist.DoesClientNotSupportWatchListSemantics(r.from)
}
