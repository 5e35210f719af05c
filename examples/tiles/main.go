// Command tiles serves a map of the present data in Rhumb: roads, airports and flights. A front end
// distributes requests to worker processes, which all read the same image in shared memory: the
// data is in memory once, however many workers there are.
package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb/examples/live"
)

//go:embed index.html
var index []byte

// workersMax bounds the worker processes.
const workersMax = 64

// config holds the flags.
type config struct {
	image, addr string
	workers     int
	every       time.Duration
	worker      bool
}

func main() {
	var cfg config
	flag.StringVar(&cfg.image, "image", "", "directory of the image (default: the image of the running demo with the most flights)")
	flag.StringVar(&cfg.addr, "listen", "127.0.0.1:7680", "address of the map")
	flag.IntVar(&cfg.workers, "workers", 4, "number of worker processes")
	flag.DurationVar(&cfg.every, "every", 5*time.Second, "interval at which the memory of the workers is printed")
	flag.BoolVar(&cfg.worker, "worker", false, "run as a worker: serve tiles on a free port and print its address")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	run := serveMap
	if cfg.worker {
		run = runWorker
	}
	if err := run(ctx, cfg, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tiles:", err)
		os.Exit(1)
	}
}

// serveMap starts the workers and distributes requests to them in turn.
func serveMap(ctx context.Context, cfg config, w io.Writer) error {
	if cfg.workers < 1 || cfg.workers > workersMax {
		return fmt.Errorf("invalid number of workers %d; want 1 to %d", cfg.workers, workersMax)
	}
	if cfg.image == "" {
		demo, err := live.Demo()
		if err != nil {
			return err
		}
		if cfg.image, err = live.Image(demo, "flights"); err != nil {
			return err
		}
	}
	var workers []*worker
	defer func() {
		// Workers end when their standard input closes, also after an error here.
		for _, w := range workers {
			w.stop()
		}
	}()
	for range cfg.workers {
		k, err := startWorker(cfg.image)
		if err != nil {
			return err
		}
		workers = append(workers, k)
	}
	listener, err := net.Listen("tcp", cfg.addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: newFrontEnd(workers), ReadHeaderTimeout: 5 * time.Second}
	go reportMemory(ctx, w, workers, cfg.every)
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	fmt.Fprintf(w, "map of %s at http://%s/ with %d workers\n", cfg.image, listener.Addr(), len(workers))
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// newFrontEnd returns a handler for the page, and for tiles through the workers.
func newFrontEnd(workers []*worker) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		// The browser may have disconnected.
		_, _ = w.Write(index)
	})
	var next atomic.Uint64
	mux.HandleFunc("GET /tiles/", func(w http.ResponseWriter, r *http.Request) {
		k := workers[next.Add(1)%uint64(len(workers))]
		// Every worker has the same image, so turns are as good as any other distribution.
		k.served.Add(1)
		k.proxy.ServeHTTP(w, r)
	})
	return mux
}

// worker is a worker process, as seen by the front end.
type worker struct {
	cmd    *exec.Cmd
	input  io.Closer // closing it stops the worker
	proxy  *httputil.ReverseProxy
	served atomic.Int64
}

// startWorker runs this program again as a worker.
func startWorker(image string) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	k := &worker{cmd: exec.Command(self, "-worker", "-image", image)}
	k.cmd.Stderr = os.Stderr
	out, err := k.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if k.input, err = k.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := k.cmd.Start(); err != nil {
		return nil, err
	}
	// The first line is the address, and proves that the worker accepts connections.
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		k.stop()
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	to, err := url.Parse(strings.TrimSpace(line))
	if err != nil {
		k.stop()
		return nil, err
	}
	k.proxy = httputil.NewSingleHostReverseProxy(to)
	return k, nil
}

// stop ends the worker by closing its standard input.
func (k *worker) stop() {
	_ = k.input.Close()
	// The worker prints its own errors to standard error.
	_ = k.cmd.Wait()
}

// reportMemory prints, at each interval, the tiles and the memory of each worker: its own and the
// shared part.
func reportMemory(ctx context.Context, w io.Writer, workers []*worker, every time.Duration) {
	for tick := time.NewTicker(every); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for i, k := range workers {
			own, shared, err := readMemory(k.cmd.Process.Pid)
			if err != nil {
				fmt.Fprintf(w, "worker %d: %v\n", i, err)
				continue
			}
			fmt.Fprintf(w, "worker %d: %6d tiles, %6.1f MiB of its own, %6.1f MiB of the image\n", i, k.served.Load(), toMiB(own), toMiB(shared))
		}
	}
}

// toMiB converts bytes to MiB.
func toMiB(n int64) float64 { return float64(n) / (1 << 20) }

// readMemory returns the resident memory of a process from /proc: its own and the shared part.
func readMemory(pid int) (own, shared int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		// Shared memory is RssShmem: it counts once per machine, however many processes map it.
		if n, _ := fmt.Sscanf(line, "RssAnon: %d", &kib); n == 1 {
			own = kib << 10
		} else if n, _ := fmt.Sscanf(line, "RssShmem: %d", &kib); n == 1 {
			shared = kib << 10
		}
	}
	return own, shared, nil
}
