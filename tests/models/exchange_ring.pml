/* The exchange ring of one binding with its lane: words, hand, recovery, tick, parking, mail, room, end of stream.
 *
 * One ring of D words and D + 1 + K slots: D behind the words, one in the producer's hand, K in the consumer's hand.
 * The killer ends the producer (KP times, at most once) and the consumer (KC times) between any two statements; what is
 * shared memory survives, what is local dies. Every statement that touches shared memory is one step; `d_step` stands
 * for one atomic instruction (a 64-bit load, store or compare-and-swap). The memory here is sequentially consistent:
 * weak_memory.py says what the fences and orders must be.
 *
 * Checked: no torn or overwritten record while it is held; positions strictly rising over all consumers (order, at most
 * once); a record is dropped or refused only when exactly D wait; the counters as an observer derives them equal the
 * truth in every state; every slot is owned once (the dead hand is found whole); no lost wake-up (invalid end state).
 *
 * -DBUG_x plants a bug; spin_bounds.py lists each with the configuration that must find it. */
#ifndef D
#define D 2
#endif
#ifndef M
#define M 4              /* records offered by the producer */
#endif
#ifndef K
#define K 1
#endif
#ifndef KC
#define KC 0
#endif
#ifndef KP
#define KP 0
#endif
#ifndef POL
#define POL 0            /* 0 drop_oldest, 1 drop_newest, 2 block */
#endif
#ifndef MAIL
#define MAIL 0           /* frames the engine announces by the mail counter */
#endif
#ifndef STEP
#define STEP 0           /* records per engine step; 0: each publish looks at the doorbell itself */
#endif
#ifndef EARLY
#define EARLY 0          /* 1: the consumer turns to other rings after each batch and marks this one */
#endif
#ifndef COPY
#define COPY 0           /* 1: with its hand empty the consumer copies a record and swaps the slot for itself */
#endif
#define START D          /* first position; the words begin as the free positions 0 .. D-1 */
#define NS (D + 1 + K)

/* Shared memory. */
byte word_pos[D], word_slot[D];
bit word_full[D], word_evicted[D];
byte progress_tail = START, progress_dropped;    /* one 64-bit word: always stored together */
byte tail_hint = START;
byte refused, consumed, lost;                    /* refused: drop_newest, produced and dropped by one store */
bit closed, parked, waiting;
byte room, mail, tick;                           /* tick: grows with each publication and the close; never cleared */
byte table[K];                                   /* the hand dealt to this consumer */
byte d0[NS], d1[NS];                             /* two cells of each slot; a record is (position, position) */

/* The kernel's side: who sleeps on which futex. A sleep is bounded in the product, so the death of a peer ends it. */
bit consumer_asleep, producer_asleep;
bit producer_dead, consumer_dead, producer_done, consumer_done, kill_producer, kill_consumer;
byte kills_c = KC, kills_p = KP;

/* Ghosts: the truth. */
byte g_published, g_dropped, g_taken, g_last, g_in_hand;

/* What an observer derives from shared memory, compared with the truth. */
hidden byte x_i, x_tail, x_dropped, x_waiting;
inline check_accounts() {
    x_tail = progress_tail; x_dropped = progress_dropped; x_waiting = 0;
    if
    :: word_pos[x_tail % D] == x_tail -> x_dropped = x_dropped + word_evicted[x_tail % D]; x_tail++
    :: else
    fi;
    x_i = 0;
    do
    :: x_i < D -> x_waiting = x_waiting + word_full[x_i]; x_i++
    :: else -> break
    od;
    assert(x_tail - START == g_published);
    assert(x_dropped == g_dropped);
    assert(x_waiting == g_published - g_dropped - g_taken);
    assert((x_tail - START) - x_dropped - x_waiting - consumed - lost == g_in_hand);
    x_i = 0; x_tail = 0; x_dropped = 0; x_waiting = 0
}
inline assert_full() {       /* what is dropped or refused is so because exactly D records wait */
    x_i = 0;
    do
    :: x_i < D -> assert(word_full[x_i]); x_i++
    :: else -> break
    od;
    x_i = 0
}

inline wake_consumer() {     /* fence; parked -> awake by exchange, then FUTEX_WAKE */
    if
    :: atomic { parked -> parked = 0 }; consumer_asleep = 0
    :: atomic { !parked -> skip }
    fi
}
inline ring_doorbell() {     /* the tick; then fence and sleep word, or a mark that end_step looks at */
#ifdef BUG_SLEEP_LOOKED_AT_BEFORE_TICK
    wake_consumer();
    tick++
#else
    tick++;
#if STEP
    wake_pending = 1
#else
    wake_consumer()
#endif
#endif
}
inline signal_room() {       /* fence; the flag is taken, the futex word grows, then FUTEX_WAKE */
    if
    :: atomic { waiting -> waiting = 0 }; room++; producer_asleep = 0
    :: atomic { !waiting -> skip }
    fi
}

/* The producer's side, its turn held: what the dead consumer had in hand is lost, its slots become the next hand. */
inline recover_consumer() {
#ifndef BUG_LOST_NOT_ACCOUNTED
    d_step {
        x_tail = progress_tail; x_dropped = progress_dropped; x_waiting = 0; x_i = 0;
        do
        :: x_i < D -> x_waiting = x_waiting + word_full[x_i]; x_i++
        :: else -> break
        od;
        lost = (x_tail - START) - x_dropped - x_waiting - consumed;
        g_in_hand = 0; x_tail = 0; x_dropped = 0; x_waiting = 0; x_i = 0;
        check_accounts()
    };
#else
    d_step { g_in_hand = 0; check_accounts() };
#endif
#ifndef BUG_OLD_HAND_DEALT_AGAIN
    d_step {                 /* every slot that is neither behind a word nor in the producer's hand */
        s = 0; i = 0;
        do
        :: s < NS ->
            x_waiting = 0; x_i = 0;
            do
            :: x_i < D -> x_waiting = x_waiting + (word_slot[x_i] == s); x_i++
            :: else -> break
            od;
            if
            :: x_waiting == 0 && s != hand -> assert(i < K); table[i] = s; i++
            :: else
            fi;
            s++
        :: else -> break
        od;
        assert(i == K);
        s = 0; i = 0; x_i = 0; x_waiting = 0
    };
#endif
    consumer_dead = 0         /* the next epoch begins: a new consumer may be born */
}

proctype producer() {
    byte h = START, hand = D, offered, mails, w_slot, r, s, i;
    bit w_full, won, wake_pending;
    {
next:
    do
    :: consumer_dead -> recover_consumer()
    :: mails < MAIL -> mail++; mails++; wake_consumer()
    :: offered < M ->
        offered++;
#if POL != 0
look:
        skip;
        d_step {
            assert(word_pos[h % D] + D == h);
            w_full = word_full[h % D];
            if
            :: w_full -> assert_full()
            :: else
            fi
        };
        if
        :: POL == 1 && w_full -> refused++; goto next
        :: POL == 2 && w_full ->
#if STEP && !defined(BUG_WAIT_WITHOUT_RINGING)
            if
            :: wake_pending -> wake_pending = 0; wake_consumer()
            :: else
            fi;
#endif
            r = room;
            waiting = 1;
#ifndef BUG_ROOM_WITHOUT_RECHECK
            if
            :: !word_full[h % D] -> goto look
            :: else
            fi;
#endif
            atomic {
                if
                :: room == r -> producer_asleep = 1
                :: else
                fi
            };
            if
            :: !producer_asleep
            :: consumer_dead -> producer_asleep = 0; recover_consumer()
            fi;
            goto look
        :: else
        fi;
#endif
        d0[hand] = h;
#ifndef BUG_PUBLISH_BEFORE_DATA
        d1[hand] = h;
#endif
load:
        skip;
        d_step {
            assert(word_pos[h % D] + D == h);
            w_full = word_full[h % D]; w_slot = word_slot[h % D]
        };
#ifdef BUG_PROGRESS_BEFORE_SWAP
        d_step { progress_tail = h + 1; progress_dropped = progress_dropped + w_full };
#endif
        d_step {
            if
#ifdef BUG_SWAP_UNCHECKED
            :: true ->
#else
            :: !w_full || (word_full[h % D] && word_slot[h % D] == w_slot) ->  /* free: a store; full: a swap */
#endif
                won = 1;
                assert(w_full || (!word_full[h % D] && word_slot[h % D] == w_slot));
                if
                :: word_full[h % D] -> assert_full()
                :: else
                fi;
                g_published++;
                g_dropped = g_dropped + word_full[h % D];
                word_pos[h % D] = h; word_slot[h % D] = hand; word_full[h % D] = 1;
#ifdef BUG_EVICTED_NOT_SET
                word_evicted[h % D] = 0;
#else
                word_evicted[h % D] = w_full;
#endif
#ifndef BUG_PROGRESS_BEFORE_SWAP
                check_accounts()
#endif
            :: else ->
                assert(!word_full[h % D]);               /* only a take can have changed it, and only once */
#ifndef BUG_RETRY_KEEPS_EVICTED
                won = 0
#else
                won = 1; w_slot = word_slot[h % D];
                g_published++;
                word_pos[h % D] = h; word_slot[h % D] = hand; word_full[h % D] = 1; word_evicted[h % D] = 1;
                check_accounts()
#endif
            fi
        };
        if
        :: !won -> goto load
        :: else
        fi;
        hand = w_slot;
#ifdef BUG_PUBLISH_BEFORE_DATA
        d1[word_slot[h % D]] = h;
#endif
#ifdef BUG_PROGRESS_IN_TWO_STORES
        d_step { progress_tail = h + 1; check_accounts() };
        progress_dropped = progress_dropped + w_full;
#endif
#if !defined(BUG_PROGRESS_IN_TWO_STORES) && !defined(BUG_PROGRESS_BEFORE_SWAP)
        d_step { progress_tail = h + 1; progress_dropped = progress_dropped + w_full; check_accounts() };
#endif
        tail_hint = h + 1;
        h++;
        ring_doorbell();
#if STEP
        if
        :: offered % STEP == 0 -> wake_pending = 0; wake_consumer()
        :: else
        fi
#endif
    :: offered == M && mails == MAIL && !closed ->
#if STEP
        if
        :: wake_pending -> wake_pending = 0; wake_consumer()
        :: else
        fi;
#endif
        closed = 1;
#ifndef BUG_CLOSE_WITHOUT_RINGING
        tick++;
        wake_consumer()
#endif
    :: closed && consumer_done -> break
    od;
    producer_done = 1
    } unless { kill_producer && !producer_done -> atomic { kill_producer = 0; producer_dead = 1 } }
}

proctype consumer() {
    byte n, w_pos, w_slot, count, i, seen_mail, seen_tick, hand[K], position[K];
    bit w_full, w_evicted, may_end, won, was_ready, pending, copied;
#if COPY
    byte copy0, copy1;
#endif
#ifdef BUG_BORN_WITHOUT_LOOK
    bit reborn;
#endif
born:
    {
    d_step {
        i = 0; count = 0;
        do
        :: i < K -> hand[i] = table[i]; i++
        :: else -> break
        od;
        i = 0
    };
    parked = 0;
    n = tail_hint - D;
    was_ready = 1;                       /* a predecessor may have seen the tick and died: look first */
#ifdef BUG_BORN_WITHOUT_LOOK
    seen_tick = tick;
    was_ready = !reborn
#endif
    do
    :: was_ready ->
look:
        may_end = closed || producer_dead;               /* before the word: what came before the end is then seen */
        d_step {
            w_pos = word_pos[n % D]; w_slot = word_slot[n % D]; w_full = word_full[n % D];
            w_evicted = word_evicted[n % D]
        };
        if
        :: w_pos == n && w_full && count < K ->
            d_step {
                if
#ifdef BUG_TAKE_UNCHECKED
                :: true ->
#else
                :: word_pos[n % D] == n && word_full[n % D] && word_slot[n % D] == w_slot ->
#endif
                    won = 1;
                    word_full[n % D] = 0; word_slot[n % D] = hand[count];
#ifdef BUG_TAKE_FORGETS_EVICTED
                    word_evicted[n % D] = 0;
#else
                    word_evicted[n % D] = w_evicted;
#endif
                    hand[count] = w_slot; position[count] = n; count++;
                    assert(n > g_last); g_last = n;
                    g_taken++; g_in_hand++;
#ifndef BUG_PROGRESS_BEFORE_SWAP
                    check_accounts()
#endif
                :: else -> won = 0
                fi
            };
            if
            :: won ->
                n++;
#if POL == 2
                signal_room()
#endif
            :: else
            fi;
            goto look
#if COPY
        :: w_pos == n && w_full && count == K && copied == 0 ->
            copy0 = d0[w_slot]; copy1 = d1[w_slot];       /* may be written meanwhile: then the swap fails */
            d_step {
                if
#ifdef BUG_COPY_KEPT_UNCHECKED
                :: true ->
#else
                :: word_pos[n % D] == n && word_full[n % D] && word_slot[n % D] == w_slot ->
#endif
                    won = 1;
                    word_full[n % D] = 0; copied = 1;
                    assert(copy0 == n && copy1 == n);
                    assert(n > g_last); g_last = n;
                    g_taken++; g_in_hand++;
                    check_accounts()
                :: else -> won = 0
                fi;
                copy0 = 0; copy1 = 0
            };
            if
            :: won ->
                n++;
#if POL == 2
                signal_room()
#endif
            :: else
            fi;
            goto look
#endif
        :: w_pos == n && !w_full -> n++; goto look        /* a predecessor took it */
        :: w_pos > n -> assert((w_pos - n) % D == 0); n = w_pos - D + 1; goto look
        :: (w_pos == n && w_full && count == K && copied == COPY) || w_pos < n ->
#ifdef BUG_HELD_SLOT_GIVEN_BACK
            d_step { consumed = consumed + count; g_in_hand = g_in_hand - count };
            if
            :: count == 1 && w_pos == n && w_full ->       /* the slot goes back while the record is still read */
                d_step {
                    if
                    :: word_pos[n % D] == n && word_full[n % D] && word_slot[n % D] == w_slot ->
                        won = 1; word_full[n % D] = 0; word_slot[n % D] = hand[0]; g_last = n; g_taken++; g_in_hand++;
                    :: else -> won = 0
                    fi
                };
                if
                :: won ->
                    atomic { assert(d0[hand[0]] == position[0] && d1[hand[0]] == position[0]) };
                    hand[0] = w_slot; position[0] = n; n++;
                    goto look
                :: else
                fi
            :: else
            fi;
            count = 0;
#else
            d_step {                                      /* the batch is read in place until here */
                i = 0;
                do
                :: i < count ->
                    assert(d0[hand[i]] == position[i] && d1[hand[i]] == position[i]);
                    position[i] = 0; i++
                :: else -> break
                od;
                i = 0
            };
            if
            :: count + copied > 0 ->
                d_step {
                    consumed = consumed + count + copied; g_in_hand = g_in_hand - count - copied;
                    count = 0; copied = 0; check_accounts()
                }
            :: else
            fi;
#endif
            if
            :: w_pos == n ->                              /* a full batch: more waits */
#if EARLY
#ifndef BUG_EARLY_STOP_WITHOUT_MARK
                pending = 1;
#endif
                was_ready = 0
#else
                goto look
#endif
#ifdef BUG_TRUST_IN_TAIL
            :: w_pos < n && producer_dead && tail_hint != n -> (tail_hint == n)     /* it never comes */
#endif
            :: w_pos < n && may_end && (seen_mail == MAIL || producer_dead) -> break
            :: w_pos < n && may_end && seen_mail != MAIL && !producer_dead -> was_ready = 0
#ifdef BUG_END_AFTER_LOOK
            :: w_pos < n && !may_end && closed -> break
#endif
            :: w_pos < n && !may_end ->
#ifdef BUG_TICK_SEEN_AFTER_DRAIN
                seen_tick = tick;
#endif
                was_ready = 0
            fi
        fi
    :: else ->
        d_step {
            was_ready = (tick != seen_tick || pending);
#ifndef BUG_TICK_SEEN_AFTER_DRAIN
            seen_tick = tick;
#endif
            pending = 0
        };
        if
        :: mail != seen_mail -> seen_mail = mail; was_ready = 1
        :: was_ready -> skip
        :: !was_ready && mail == seen_mail ->
            parked = 1;
#ifndef BUG_PARK_WITHOUT_RECHECK
            if
            :: tick != seen_tick || mail != seen_mail || producer_dead -> was_ready = 1
            :: else ->
#endif
                atomic {
                    if
                    :: parked -> consumer_asleep = 1
                    :: else
                    fi
                };
                if
                :: !consumer_asleep
                :: producer_dead -> consumer_asleep = 0; was_ready = 1
                fi
#ifndef BUG_PARK_WITHOUT_RECHECK
            fi
#endif
            ;
            parked = 0
        fi
    od;
    consumer_done = 1
    } unless {
        kill_consumer && !consumer_done ->
        atomic { kill_consumer = 0; consumer_asleep = 0; consumer_dead = 1 };
#ifdef BUG_BORN_WITHOUT_LOOK
        reborn = 1;
#endif
        w_full = 0; count = 0; copied = 0; was_ready = 0; may_end = 0; won = 0; seen_mail = 0; seen_tick = 0; pending = 0;
end_orphan:
        if
        :: !consumer_dead -> goto born
        :: producer_dead && consumer_dead -> skip
        fi
    }
}

proctype killer() {
end_killer:
    do
    :: atomic { kills_p > 0 && !producer_done && !producer_dead -> kills_p--; kill_producer = 1 };
       (!kill_producer || producer_done)
    :: atomic { kills_c > 0 && !consumer_done && !consumer_dead -> kills_c--; kill_consumer = 1 };
       (!kill_consumer || consumer_done)
    :: kills_c == 0 && kills_p == 0 -> break
    od
}

init {
    byte i;
    d_step {
        do
        :: i < D -> word_pos[i] = i; word_slot[i] = i; i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < K -> table[i] = D + 1 + i; i++
        :: else -> break
        od;
        i = 0
    };
    atomic { run producer(); run consumer(); run killer() };
    (producer_done || producer_dead) && (consumer_done || consumer_dead);
    d_step {
        check_accounts();
        /* A ring whose consumer met the end of stream holds nothing; what was offered was published or refused. */
        assert(!consumer_done || (g_published == g_dropped + consumed + lost && g_in_hand == 0));
        assert(producer_dead || g_published + refused == M)
    }
}
