// Package rtt provides round-trip times between regions: published ones of well-known cloud
// regions, a model for all other pairs, and a running estimate of what a node measures. It is pure.
//
// # Sources
//
// The matrix holds medians (P50) of the thirty days before 9 April 2024 from Microsoft, "Azure
// network round-trip latency statistics"
// (learn.microsoft.com/azure/networking/azure-network-latency), one direction of each pair. Each
// name here denotes the Azure region in or near that place. The regions elsewhere are "mumbai"
// (Central India, in Pune), "stockholm" (Sweden Central, in Gävle) and "oregon" (West US 2, in
// Quincy, Washington). Two pairs have other sources:
//
//   - singapore and virginia: 253.5 ms, the figure that TippyDB (section 4) takes from P. Bailis and others, Highly
//     Available Transactions: Virtues and Limitations, VLDB 7(3), 2013, who measured it in Amazon's cloud. Microsoft's
//     figure is 223 ms.
//   - california and oregon: 22.5 ms, approximate, from the same table of Bailis; Microsoft's page lacks the pair.
//
// Networks change. A latency file (package wan) replaces these figures by current ones.
//
// # Model
//
// Light in glass fibre travels at about two thirds of its speed in vacuum, and cables do not follow
// great circles. For a pair that the matrix lacks, Model assumes a path of distance * pathFactor in
// each direction at that speed, plus a constant for equipment. Both parameters were fitted to the
// matrix; the test reports how well they fit.
package rtt
