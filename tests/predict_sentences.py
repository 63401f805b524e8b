"""Sentences of our own in twenty languages, as tickets and mails say them, with the language each is in.

Routing is measured on them. Four of each language: three of the length of a message, and one short one, which is where
detection has little to go by.
"""

from __future__ import annotations

SENTENCES: dict[str, tuple[str, ...]] = {
    "en": (
        "The invoice arrived twice this month and I would like one of them refunded.",
        "My package was left in the rain and everything inside it is ruined.",
        "Could you tell me when the technician will come to repair the heating?",
        "Where is my order?",
    ),
    "de": (
        "Die Rechnung kam diesen Monat zweimal und ich möchte eine davon erstattet bekommen.",
        "Mein Paket wurde im Regen abgestellt und alles darin ist durchnässt.",
        "Können Sie mir sagen, wann der Techniker kommt, um die Heizung zu reparieren?",
        "Wo ist meine Bestellung?",
    ),
    "fr": (
        "La facture est arrivée deux fois ce mois-ci et je voudrais être remboursé.",
        "Mon colis a été laissé sous la pluie et tout ce qu'il contenait est abîmé.",
        "Pouvez-vous me dire quand le technicien viendra réparer le chauffage ?",
        "Où est ma commande ?",
    ),
    "es": (
        "La factura llegó dos veces este mes y quisiera que me devolvieran una de ellas.",
        "Dejaron mi paquete bajo la lluvia y todo lo que había dentro está estropeado.",
        "Me puede decir cuando viene el tecnico para arreglar la calefaccion de mi casa",
        "¿Dónde está mi pedido?",
    ),
    "it": (
        "La fattura è arrivata due volte questo mese e vorrei il rimborso di una delle due.",
        "Il mio pacco è stato lasciato sotto la pioggia e tutto il contenuto è rovinato.",
        "Mi sa dire quando viene il tecnico per riparare il riscaldamento di casa mia?",
        "Dove si trova il mio ordine?",
    ),
    "pt": (
        "A fatura chegou duas vezes este mês e eu gostaria do reembolso de uma delas.",
        "A minha encomenda ficou à chuva e tudo o que estava dentro ficou estragado.",
        "Pode dizer-me quando vem o técnico para reparar o aquecimento da minha casa?",
        "Onde está a minha encomenda?",
    ),
    "nl": (
        "De factuur kwam deze maand twee keer en ik wil er graag een van terugbetaald krijgen.",
        "Mijn pakket is in de regen neergezet en alles wat erin zat is kapot.",
        "Kunt u mij vertellen wanneer de monteur komt om de verwarming te repareren?",
        "Waar is mijn bestelling?",
    ),
    "sv": (
        "Fakturan kom två gånger den här månaden och jag vill få en av dem återbetald.",
        "Mitt paket lämnades ute i regnet och allt som låg i det är förstört.",
        "Kan ni säga mig när teknikern kommer för att laga värmen i lägenheten?",
        "Var är min beställning?",
    ),
    "pl": (
        "Faktura przyszła w tym miesiącu dwa razy i chciałbym otrzymać zwrot za jedną z nich.",
        "Moją paczkę zostawiono na deszczu i wszystko w środku jest zniszczone.",
        "Czy mogą mi państwo powiedzieć, kiedy przyjdzie technik naprawić ogrzewanie?",
        "Gdzie jest moje zamówienie?",
    ),
    "tr": (
        "Fatura bu ay iki kez geldi ve bunlardan birinin iade edilmesini istiyorum.",
        "Paketim yağmurda bırakılmış ve içindeki her şey bozulmuş durumda.",
        "Teknisyenin kaloriferi tamir etmek için ne zaman geleceğini söyler misiniz?",
        "Siparişim nerede kaldı?",
    ),
    "vi": (
        "Hóa đơn tháng này đã đến hai lần và tôi muốn được hoàn tiền một hóa đơn.",
        "Gói hàng của tôi bị để ngoài mưa và mọi thứ bên trong đều bị hỏng.",
        "Anh có thể cho tôi biết khi nào kỹ thuật viên đến sửa máy sưởi không?",
        "Đơn hàng của tôi ở đâu?",
    ),
    "ro": (
        "Factura a venit de două ori luna aceasta și aș dori rambursarea uneia dintre ele.",
        "Coletul meu a fost lăsat în ploaie și tot ce era înăuntru s-a stricat.",
        "Îmi puteți spune când vine tehnicianul să repare încălzirea din apartament?",
        "Unde este comanda mea?",
    ),
    "fi": (
        "Lasku tuli tässä kuussa kaksi kertaa ja haluaisin toisesta rahat takaisin.",
        "Pakettini jätettiin sateeseen ja kaikki sen sisältö on pilalla.",
        "Voitteko kertoa milloin huoltomies tulee korjaamaan asunnon lämmityksen?",
        "Missä tilaukseni on?",
    ),
    "ru": (
        "Счёт пришёл в этом месяце дважды, и я хотел бы вернуть деньги за один из них.",
        "Мою посылку оставили под дождём, и всё внутри испорчено.",
        "Скажите, пожалуйста, когда придёт мастер чинить отопление?",
        "Где мой заказ?",
    ),
    "el": (
        "Το τιμολόγιο ήρθε δύο φορές αυτόν τον μήνα και θέλω επιστροφή για το ένα.",
        "Το δέμα μου έμεινε στη βροχή και όλα όσα είχε μέσα καταστράφηκαν.",
        "Μπορείτε να μου πείτε πότε θα έρθει ο τεχνικός να φτιάξει τη θέρμανση;",
        "Πού είναι η παραγγελία μου;",
    ),
    "ar": (
        "وصلت الفاتورة مرتين هذا الشهر وأريد استرداد ثمن واحدة منهما.",
        "تُرك طردي تحت المطر وتلف كل ما بداخله.",
        "هل يمكنكم إخباري متى سيأتي الفني لإصلاح التدفئة؟",
        "أين طلبي؟",
    ),
    "hi": (
        "इस महीने बिल दो बार आया है और मैं उनमें से एक का पैसा वापस चाहता हूँ।",
        "मेरा पार्सल बारिश में छोड़ दिया गया और अंदर का सब कुछ खराब हो गया।",
        "क्या आप बता सकते हैं कि हीटर ठीक करने वाला कब आएगा?",
        "मेरा ऑर्डर कहाँ है?",
    ),
    "zh": (
        "这个月的账单来了两次，我想退掉其中一张的钱。",
        "我的包裹被放在雨里，里面的东西全都坏了。",
        "请问技术员什么时候来修理暖气？",
        "我的订单在哪里？",
    ),
    "ja": (
        "今月は請求書が二回届いたので、片方を返金してほしいです。",
        "荷物が雨の中に置かれていて、中身が全部だめになりました。",
        "暖房の修理の方はいつ来てくれますか。",
        "注文した品はどこですか。",
    ),
    "ko": (
        "이번 달에 청구서가 두 번 와서 하나는 환불받고 싶습니다.",
        "제 소포가 비를 맞아서 안에 있던 물건이 전부 망가졌습니다.",
        "난방을 고치러 기사님이 언제 오시는지 알려 주실 수 있나요?",
        "제 주문은 어디에 있나요?",
    ),
}

THIRTEEN_WORDS = SENTENCES["en"][1]
"""Thirteen English words: what the figures for a short state are measured on."""

LONG_ENGLISH = (" ".join(SENTENCES["en"]) + "\n") * 28
"""About 6.6 kB of English."""
