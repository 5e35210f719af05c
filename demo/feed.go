package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
)

// store is the cluster as seen by the feed of one region. local reports that a node of that region
// served the call.
type store interface {
	// report writes the status of a flight and one position of its track, atomically.
	report(ctx context.Context, f *flight, now time.Time) (local bool, err error)
	// look reads the status of a flight.
	look(ctx context.Context, id string) (local bool, err error)
}

const (
	// FlightsDefault is the default number of flights in the air.
	FlightsDefault = 300
	// FlightsMax bounds the number of flights, since everything runs on one machine.
	FlightsMax = 10_000
	// callersPerRegion bounds the concurrent calls of the feed of one region.
	callersPerRegion = 32
	// readsPerWrite is the number of reads per write. localReads is the share of reads that ask for
	// a flight over the reader's own region.
	readsPerWrite = 2
	localReads    = 0.8
	// feedTick is the interval at which the feed checks for flights that are due.
	feedTick = 50 * time.Millisecond
	// callTimeout bounds one call of the feed.
	callTimeout = 10 * time.Second
)

// feed plays flights over the regions, with one store per region.
type feed struct {
	regions []Region
	places  []rhumb.Point
	stores  []store
	meters  []*meter
	rng     *rand.Rand // used only by the goroutine that runs the feed

	mu   sync.Mutex // guards over
	over [][]string // for each region, the IDs of the flights over it that have been written

	flights []*flown
}

// flown is a flight and the time of its next report. busy keeps the reports of a flight in order:
// each waits for the one before.
type flown struct {
	*flight
	due  time.Time
	busy chan struct{} // holds a token while a report is in progress
}

// newFeed returns a feed whose flights are spread over their routes and over the report interval.
func newFeed(regions []Region, stores []store, meters []*meter, flights int, seed uint64, now time.Time) *feed {
	f := &feed{
		regions: regions, stores: stores, meters: meters, over: make([][]string, len(regions)),
		rng: rand.New(rand.NewPCG(seed, 0)),
	}
	for _, r := range regions {
		f.places = append(f.places, r.location)
	}
	// Not close to landing, so that every flight can be watched for a while.
	for range flights {
		f.flights = append(f.flights, f.launchFlight(now, f.rng.Float64()*(1-2*climbing)))
	}
	return f
}

// launchFlight returns a new flight that has covered the given share of its route. Its first report
// is due at a random time within its interval, so that flights do not report in bursts.
func (f *feed) launchFlight(now time.Time, ahead float64) *flown {
	fl := newFlight(f.rng, now, ahead)
	return &flown{flight: fl, due: now.Add(time.Duration(f.rng.Int64N(int64(fl.every)))), busy: make(chan struct{}, 1)}
}

// run plays until ctx ends and all calls have returned.
func (f *feed) run(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	slots := make([]chan struct{}, len(f.regions))
	for i := range slots {
		slots[i] = make(chan struct{}, callersPerRegion)
	}
	// start runs a call of a region, unless the region already has the maximum number of calls. It
	// never waits: a slow region must not delay the others.
	start := func(region int, call func()) bool {
		select {
		case slots[region] <- struct{}{}:
		default:
			return false
		}
		calls.Go(func() {
			call()
			<-slots[region]
		})
		return true
	}
	tick := time.NewTicker(feedTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			f.step(ctx, now, start)
		}
	}
}

// step starts the reports that are due and the reads that accompany them.
func (f *feed) step(ctx context.Context, now time.Time, start func(region int, call func()) bool) {
	for i, fl := range f.flights {
		if now.Before(fl.due) {
			continue
		}
		if fl.landed(now) {
			f.forgetFlight(fl.id)
			f.flights[i] = f.launchFlight(now, 0)
			continue
		}
		// The nearest region reports a flight, as a ground station would. It changes as the flight
		// moves, but the home of the flight does not.
		region := geo.Nearest(fl.place(now), f.places)
		// If the last report is still in progress, the flight remains due and is tried again.
		select {
		case fl.busy <- struct{}{}:
		default:
			continue
		}
		if !start(region, func() { f.report(ctx, fl, region) }) {
			<-fl.busy
			continue
		}
		fl.due = now.Add(fl.every)
		for range readsPerWrite {
			if id := f.pickFlight(region); id != "" {
				start(region, func() { f.look(ctx, id, region) })
			}
		}
	}
}

// report writes one report of a flight and measures the call.
func (f *feed) report(ctx context.Context, fl *flown, region int) {
	defer func() { <-fl.busy }()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	begin := time.Now()
	local, err := f.stores[region].report(ctx, fl.flight, begin)
	if ctx.Err() != nil && err != nil && context.Cause(ctx) == context.Canceled {
		return // the demo ends, and the call did not fail
	}
	f.meters[region].wrote(time.Since(begin), local, err)
	if err != nil {
		return
	}
	// The flight's fields belong to this goroutine: busy admits one report at a time.
	fl.reported++
	// Only now can a reader find the flight.
	if fl.reported == 1 {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.over[region] = append(f.over[region], fl.id)
	}
}

// look reads a flight and measures the call.
func (f *feed) look(ctx context.Context, id string, region int) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	begin := time.Now()
	local, err := f.stores[region].look(ctx, id)
	if ctx.Err() != nil && err != nil && context.Cause(ctx) == context.Canceled {
		return
	}
	f.meters[region].read(time.Since(begin), local, err)
}

// pickFlight returns the ID of a random flight to read: mostly one over the reader's region,
// otherwise one over any region. It returns "" if there is none.
func (f *feed) pickFlight(region int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	from := f.over[region]
	// A region may be without flights at first, or for good if no route crosses it.
	if f.rng.Float64() >= localReads || len(from) == 0 {
		from = f.over[f.rng.IntN(len(f.over))]
	}
	if len(from) == 0 {
		return ""
	}
	return from[f.rng.IntN(len(from))]
}

// forgetFlight removes a flight that has landed from those that are read.
func (f *feed) forgetFlight(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, ids := range f.over {
		if at := slices.Index(ids, id); at >= 0 {
			f.over[i] = slices.Delete(ids, at, at+1)
		}
	}
}

// countAloft returns the number of flights over each region.
func (f *feed) countAloft() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := make([]int, len(f.over))
	for i, ids := range f.over {
		counts[i] = len(ids)
	}
	return counts
}

// rowName returns the name of a position. Names sort in the order of the positions.
func rowName(f *flight, now time.Time) string {
	return fmt.Sprintf("%s/%d/%06d", f.id, now.Unix(), f.reported)
}
