(ns rhumb.jepsen.workload.bank
  "Money that moves between accounts of one range, in batches on the condition that no account has changed."
  (:require [jepsen.checker :as checker]
            [jepsen.generator :as gen]
            [jepsen.tests.bank :as bank]
            [rhumb.jepsen.client :as rc])
  (:import (io.rhumb.jepsen Change Failure Value)))

(def accounts (vec (range 8)))
(def each "What an account has in the beginning." 10)

(defn- account [a] (str "bank/" a))

(defn- open-accounts! [c test]
  (try (rc/write! c test (rc/home test)
                  (mapv #(.ifAbsent ^Change (rc/put test (account %) each)) accounts))
       (catch Failure f (when-not (= "CONDITION_FAILED" (.kind f)) (throw f)))))

(defn- amounts [c test]
  (let [found (vec (rc/get-all c test (rc/home test) (mapv account accounts)))]
    (when (every? #(.exists ^Value %) found) found)))

(defn- transfer! [c test op seen]
  (let [{:keys [from to amount]} (:value op)
        money (mapv (comp parse-long rc/text) seen)]
    (if (or (= from to) (< (money from) amount))
      (assoc op :type :fail :error :not-enough)
      (do (rc/write! c test (rc/home test)
                     [(.ifVersion ^Change (rc/put test (account from) (- (money from) amount)) (seen from))
                      (.ifVersion ^Change (rc/put test (account to) (+ (money to) amount)) (seen to))])
          (assoc op :type :ok)))))

(defrecord Bank []
  rc/Workload
  (answer [_ c test {:keys [f] :as op}]
    (let [seen (try (or (amounts c test) (do (open-accounts! c test) (amounts c test)))
                    (catch Failure e e))]
      (cond
        (instance? Failure seen) (assoc op :type :fail :error [(.kind ^Failure seen) :read])
        (nil? seen) (assoc op :type :fail :error :not-open)
        (= f :read) (assoc op :type :ok :value (zipmap accounts (map (comp parse-long rc/text) seen)))
        :else (transfer! c test op seen)))))

(defn workload [opts]
  {:accounts accounts :total-amount (* each (count accounts)) :max-transfer 5
   :client (rc/client (->Bank))
   :generator (bank/generator)
   :final-generator (gen/each-thread {:f :read})
   :checker (bank/checker {:negative-balances? false})})
